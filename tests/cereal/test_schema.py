"""The wire: where each structure has its fields, as the published schema has them."""

import functools
import re
from collections.abc import Iterator
from typing import Any

import capnp
import numpy as np
import pytest

from cereal.schema import SCHEMA_PATH, log, new_event, read_event
from modeld.constants import T_IDXS
from modeld.outputs.verdict import curvature_from_plan

SCHEMAS: dict[str, Any] = {
    name: capnp.load(str(SCHEMA_PATH.with_name(f"{name}.capnp")))
    for name in ("car", "driving", "hardware", "gnss", "health")
}
car, driving, hardware, gnss, health = SCHEMAS.values()

# Structure (of log.capnp where none is named), id, data words, pointers, as openpilot's own
# compiled schema has them.
LAYOUTS = """
    Event 0xD314CFD957229C11 2 1 | XYZTData 0xC3CBAE1FD505AE80 0 7
    ModelDataV2 0xC4713F6B0D36ABE9 6 17 | ModelDataV2.LeadDataV3 0xD698881AD0CE7FEB 1 9
    ModelDataV2.MetaData 0xD1646AB3B45CFABD 3 3
    ModelDataV2.DisengagePredictions 0x860AA5DDBCDC8D25 0 9
    ModelDataV2.Pose 0xFB3EC0702E67884F 0 4 | ModelDataV2.Action 0x94D0BCB35A764584 2 0
    # 2 words until 2025; `big` @8 opened the third.
    DrivingModelData 0xE8F9BA819993A776 3 4 | DrivingModelData.PolyPath 0xCA1E4710874D12B5 0 3
    DrivingModelData.LaneLineMeta 0x996EF0369D7E5625 2 0
    DrivingModelData.MetaData 0xA0CFCFA4ED19AC5D 1 0 | CameraOdometry 0xFA9A296B9FD41A96 2 8
    DriverStateV2 0xFC010C40147563B0 3 3 | DriverStateV2.DriverData 0xC9F73BB1CDF28A6A 5 6
    FrameData 0xEA0245F695AE0A33 12 7 | LiveCalibrationData 0x96DF70754D8390BC 2 8
    DriverMonitoringStateV1 0xB83CDA094A1DA284 7 2 | DriverMonitoringState 0xA0DF507D7DF1052D 2 3
    LiveDelayData 0x98DFDB22C44DF8D4 3 1 | DeviceState 0xA4D8B5AF2AA492EB 15 11
    ChestnutState 0x8FD70F1CB19DC3AA 4 0 | EncodeIndex 0x89D394E3541735FC 6 0
    Thumbnail 0xB65FCE64120AF7D3 2 1 | CanData 0x8785009A964C7C59 1 1
    Sentinel 0xEF0382D244F56E38 1 0 | InitData 0xE71008CAEB3FB65C 2 21
    ManagerState 0xCF7154B31A69635B 0 1 | ManagerState.ProcessState 0x869A54D2708469EA 2 1
    car.CarState 0x9DA4FA09E052903C 10 6 | car.CarState.CruiseState 0xE64E81478E6E60AF 2 0
    car.CarState.ButtonEvent 0xFF5CA6835B4ACEF6 1 0 | car.CarControl 0xF78829049AB814AF 4 6
    car.CarControl.Actuators 0xE97275A919432828 5 0 | car.CarParams 0x8C69372490AAA9DA 18 14
    # As compiled headers of openpilot releases have them, of structures that have not grown since.
    gnss.GPSNMEAData 0x9D291D7813BA4A88 2 1 | gnss.GpsLocationData 0xE946524859ADD50E 8 1
    hardware.SensorEventData 0xA2B29A69D44529A1 4 1
    hardware.SensorEventData.SensorVec 0xA43429BD2BFC24FC 1 1
    hardware.PeripheralState 0xCEB8F49734857A88 2 0
    driving.RadarState.LeadData 0xB96F3AD9170CF085 7 0
    driving.ControlsState.LateralINDIState 0x939463348632375E 6 0
    driving.ControlsState.LateralPIDState 0xF28C5DC9E09375E3 5 0
    driving.ControlsState.LateralLQRState 0x9024E2D790C82ADE 3 0
    driving.ControlsState.LateralAngleState 0xA2E4EA88AC9980F1 2 0
    driving.ControlsState.LateralDebugState 0xA63A46F0F2889B2D 2 0
    driving.LongitudinalPlan.GpsTrajectory 0x8CFEB072F5301000 0 2
    driving.LiveLocationKalman.Measurement 0xBF23F9ED66DACE1C 1 2
    hardware.AndroidLogEntry 0xEA095DA1894F7D85 3 2 | hardware.ProcLog 0xAF85387B3F681406 0 3
    hardware.ProcLog.CPUTimes 0xF189C8C5BF2CE087 5 0 | hardware.ProcLog.Mem 0xFD095F94F08B3FD4 8 0
    gnss.GnssMeasurements.CorrectedMeasurement 0xEAA4A17D86AC76B0 5 3
    gnss.UbloxGnss 0x85DDDD7CE6CEFA5D 1 1 | gnss.UbloxGnss.MeasurementReport 0xA73BA546A29820F4 2 2
    gnss.UbloxGnss.MeasurementReport.Measurement 0x8F8A655F5E326401 5 1
    gnss.UbloxGnss.IonoData 0xC3A3A8DE519A4A26 3 2 | gnss.UbloxGnss.HwStatus 0xEBB036B114275AA8 2 0
    gnss.UbloxGnss.HwStatus2 0xF919B410B90E53C6 2 0 | gnss.QcomGnss 0xDE94674B07AE51C1 2 1
    gnss.QcomGnss.MeasurementStatus 0xE501010E1BCAE83B 1 0
    gnss.QcomGnss.MeasurementReport 0xF580D7D86B7B8692 4 1
    gnss.QcomGnss.MeasurementReport.SV 0xF10C595AE7BB2C27 8 1
    gnss.QcomGnss.ClockReport 0xCA965E4ADD8F4F0B 18 0
    gnss.QcomGnss.DrMeasurementReport 0x8053C39445C6C75C 10 1
    gnss.QcomGnss.DrMeasurementReport.SV 0xF08B81DF8CBF459C 12 1
    hardware.Clocks 0xC95FB49A7BDC4618 5 0 | hardware.Joystick 0xE42401658E2715E2 0 2
    hardware.UploaderState 0xDE266B39B76B461E 3 1 | hardware.UserBookmark 0xFE346A9DE48D9B50 0 0
    hardware.UIDebug 0xFE35AD896FFAEACF 1 0 | driving.NavInstruction.Lane 0xA4CD1689C0A439D9 1 1
    driving.NavRoute 0xA61452F6440D97D3 0 1 | driving.NavRoute.Coordinate 0xC4C96F53AD1E7485 1 0
    driving.LiveTorqueParametersData 0xE61690EB0B091692 6 1 | Boot 0xA12E8670927A2549 1 5
    InitData.PandaInfo 0xE673E8725CDFF0AD 1 3 | DeviceState.NetworkInfo 0x9D57532D82C04AFC 1 5
    DeviceState.NetworkStats 0xB98C64EA27898EA0 2 0
    # Grown since those headers; by what, is counted behind.
    driving.RadarState 0x9A185389D6FDD05F 5 6  # 5, 5: radarErrors
    driving.ControlsState 0x97FF69C53601ABF1 24 6
    driving.LongitudinalPlan 0xE00B5B3EBA12876C 11 6  # 10, 6: execution time, boost
    driving.LateralPlan 0xE1E9318E2AE8B51E 9 9
    driving.LiveLocationKalman 0xEBC5703D1EE7C129 5 15  # 4, 14: first fix, filter state
    driving.LiveParametersData 0xD9058DCB967C2753 7 2  # 7, 0: two filter states
    driving.ControlsState.LateralTorqueState 0xE774A050CBF689A4 6 0  # 5, 0: jerk, version
    driving.NavInstruction 0xC18216B27F8602AF 3 6  # 3, 5: allManeuvers
    hardware.ProcLog.Process 0xB0B85613F19E6D28 12 3  # 9, 3: three sizes
    hardware.PandaState 0xA7649E2575E4591E 10 4  # 8, 4: voltages and more
    hardware.PandaState.PandaCanState 0xF8D2972DEB0CD45C 8 0  # 6, 0: rates of interrupts
    gnss.GnssMeasurements 0xAFD47016570E9D09 3 6  # 3, 4: positions, ephemerides
    gnss.UbloxGnss.Ephemeris 0xD8418C788118F85C 34 2  # 33, 2: one word of times
    gnss.QcomGnss.DrSvPolyReport 0xB1FB80811A673270 8 4  # 7, 4: gpsTow
    EncodeData 0xCF9AEAB355DD85F0 2 3  # 1, 3: width, height
    # Younger than those headers: counted by hand from the ordinals and types.
    driving.LivePose 0xC24CA2B57206B44D 2 5 | driving.LivePose.XYZMeasurement - 4 0
    driving.OnroadEvent 0xC4FA6047F024E718 1 0 | driving.SelfdriveState 0xB52430DC48F4A83B 2 3
    driving.DriverAssistance 0x9B669F73A9C1CFBC 1 0 | hardware.SoundPressure 0xDC24138990726023 2 0
    hardware.AudioData 0xA4E671DB37B8ADE5 1 1 | hardware.Touch 0x8795CD2944FAEAB6 4 0
    car.CarOutput 0xD817D6655115CA85 0 1 | car.RadarData 0x888AD6581CF0AACB 0 4
    car.RadarData.RadarPoint - 4 0
    # Our own, counted by hand from the ordinals and types.
    health.ModeldHealth 0xB4E19C7D2F6A8350 15 19 | health.ModeldHealth.SelfTest - 1 1
    health.ModeldHealth.Fault - 2 1 | health.ModeldHealth.Stage - 1 2
    health.ModeldHealth.Temperature - 1 1 | health.ModeldHealth.Setting - 1 3
    health.ModeldHealth.Note - 0 2
"""


def layouts() -> Iterator[tuple[Any, int | None, int, int]]:
    for line in LAYOUTS.splitlines():
        for row in filter(str.strip, line.partition("#")[0].split("|")):
            path, number, words, pointers = row.split()
            names = path.split(".")
            kind = functools.reduce(
                getattr, names[1:], SCHEMAS.get(names[0]) or getattr(log, names[0])
            )
            yield kind, None if number == "-" else int(number, 16), int(words), int(pointers)


ROWS = list(layouts())
# Offsets in units of the field's own width, counted by hand: fields fill holes in ordinal order.
OFFSETS = {
    # Seven float32 and bools precede: vEgo is float 0; the bools begin in the third word, bit 64.
    # Bits 64..79 are full and gearShifter has 80..95: a new 32-bit hole was opened at 352.
    car.CarState: {"vEgo": 0, "gasPressed": 64, "brakePressed": 65, "steeringPressed": 66,
        "brakeLights": 68, "leftBlinker": 69, "rightBlinker": 70, "canValid": 74,
        "clutchPressed": 75, "espDisabled": 79, "leftBlindspot": 352, "rightBlindspot": 353,
        "canRcvTimeout": 363, "engineRpm": 15},
    car.CarControl: {"latActive": 2},
    log.FrameData: {"frameId": 0, "timestampEof": 1},
    log.ModelDataV2: {"frameId": 0, "timestampEof": 2},
    log.Event: {"logMonoTime": 0, "valid": 80},
    # Ten float32, two bools in the word they open, float32 behind them, a bool in the old hole.
    driving.RadarState.LeadData: {"aLeadK": 9, "status": 321, "aLeadTau": 11, "radar": 322,
        "radarTrackId": 13},
    # The flags leave room for a 32-bit and a 16-bit number in their word.
    gnss.GpsLocationData: {"latitude": 1, "speed": 1, "bearingDeg": 8, "source": 1,
        "unixTimestampMillis": 5, "hasFix": 480, "satelliteCount": 61},
    hardware.SensorEventData: {"timestamp": 2, "source": 7, "uncalibrated": 192, "temperature": 7},
    driving.ControlsState: {"uiAccelCmd": 5, "enabled": 704, "vCruise": 23,
        "longitudinalPlanMonoTime": 13, "longControlState": 45, "state": 58, "active": 707,
        "curvature": 34},
    driving.LongitudinalPlan: {"modelMonoTime": 3},
    hardware.PandaState: {"safetyModel": 14},
    driving.LivePose: {"timestamp": 1},
    # A number of 32 bits, a hole of as many, then the float64 in the second word.
    health.ModeldHealth: {"processId": 0, "uptime": 1, "isFallback": 32, "warmUpRunsLeft": 4,
        "frames": 3, "frameId": 5, "publicationAge": 14, "majorFaults": 14},
}  # fmt: skip


@pytest.mark.parametrize(("kind", "number", "words", "pointers"), ROWS)
def test_layout_is_the_published_one(
    kind: Any, number: int | None, words: int, pointers: int
) -> None:
    node = kind.schema.node
    assert (node.struct.dataWordCount, node.struct.pointerCount) == (words, pointers)
    assert number in (None, node.id)


@pytest.mark.parametrize("kind", OFFSETS)
def test_offset_of_used_fields_is_the_published_one(kind: Any) -> None:
    fields = {one.name: one for one in kind.schema.node.struct.fields}
    assert {name: fields[name].slot.offset for name in OFFSETS[kind]} == OFFSETS[kind]


def test_event_declares_every_ordinal_from_0_to_154_once() -> None:
    ordinals = sorted(one.ordinal.explicit for one in log.Event.schema.node.struct.fields)
    assert ordinals == list(range(155))


ORDINALS = {
    "roadCameraState": 2, "deviceState": 6, "liveCalibration": 19, "carState": 22, "carControl": 23,
    "cameraOdometry": 63, "carParams": 69, "driverMonitoringState": 71, "wideRoadCameraState": 74,
    "modelV2": 75, "driverStateV2": 92, "drivingModelData": 128, "liveDelay": 146,
    "dmonitoringmodeldHealth": 144, "modeldHealth": 145, "driverMonitoringStateV2": 151,
}  # fmt: skip


def test_members_have_their_ordinals() -> None:
    fields = {one.name: one.ordinal.explicit for one in log.Event.schema.node.struct.fields}
    assert {name: fields[name] for name in ORDINALS} == ORDINALS


def test_enumerants_of_today_have_their_numbers() -> None:
    numbers = car.CarParams.SafetyModel.schema.enumerants
    assert {name: numbers[name] for name in ("byd", "volvo", "bmw", "mg")} == {
        "byd": 35,
        "volvo": 36,
        "bmw": 37,
        "mg": 38,
    }


def test_every_structure_declares_its_ordinals_without_gaps() -> None:
    for kind, *_ in ROWS:
        ordinals = []
        for one in kind.schema.node.struct.fields:
            if one.which() == "group":
                # The two groups are unions.
                ordinals += {
                    "lateralTuning": [26, 27, 40, 67],
                    "lateralControlState": [52, 53, 55, 58, 59, 60, 65],
                }[one.name]
            else:
                ordinals.append(one.ordinal.explicit)
        assert sorted(ordinals) == list(range(len(ordinals))), kind


# Out of use for years, or of forks. Their bodies are not declared.
OPAQUE = {
    "liveEventDEPRECATED", "model", "featuresDEPRECATED", "liveUIDEPRECATED",
    "liveTracksDEPRECATED", "liveLocationDEPRECATED", "ethernetDataDEPRECATED",
    "navUpdateDEPRECATED", "cellInfoDEPRECATED", "wifiScanDEPRECATED", "androidGnssDEPRECATED",
    "lidarPtsDEPRECATED", "liveMpcDEPRECATED", "liveLongitudinalMpcDEPRECATED",
    "navStatusDEPRECATED", "gpsPlannerPointsDEPRECATED", "gpsPlannerPlanDEPRECATED",
    "trafficEventsDEPRECATED", "liveLocationTimingDEPRECATED", "orbslamCorrectionDEPRECATED",
    "liveLocationCorrectedDEPRECATED", "orbObservationDEPRECATED", "locationDEPRECATED",
    "uiNavigationEventDEPRECATED", "liveLocationKalmanDeprecatedDEPRECATED",
    "orbOdometryDEPRECATED", "orbFeaturesDEPRECATED", "applanixLocationDEPRECATED",
    "orbKeyFrameDEPRECATED", "uiLayoutStateDEPRECATED", "orbFeaturesSummaryDEPRECATED",
    "driverStateDEPRECATED", "liveMapDataDEPRECATED", "kalmanOdometryDEPRECATED",
    "navModelDEPRECATED", "uiPlanDEPRECATED", *(f"customReserved{n}" for n in range(18)),
}  # fmt: skip


def test_every_message_of_today_has_a_body() -> None:
    fields = log.Event.schema.fields
    found = set()
    for name, field in fields.items():
        kind = field.proto.slot.type
        if kind.which() in ("struct", "list"):
            schema: Any = field.schema
            schema = schema.elementType if kind.which() == "list" else schema
            if schema.node.displayName.endswith(":Opaque"):
                found.add(name)
    assert found == OPAQUE


def test_no_field_hides_behind_a_name_of_the_library() -> None:
    """Fields are attributes: one called `schema` could not be read."""
    reserved = set(dir(read_event(new_event("carState", mono_time_ns=1).to_bytes())))
    for kind, *_ in ROWS:
        assert not set(kind.schema.fieldnames) & (reserved - set(kind.schema.fieldnames)), kind
        assert not set(kind.schema.fieldnames) & {"schema", "which", "to_dict", "total_size"}


def test_curvature_is_positive_to_the_right() -> None:
    """What the schema says of signs is what the daemon computes."""
    said = [
        comment
        for name in ("log.capnp", "driving.capnp")
        for comment in re.findall(
            r"\bdesiredCurvature @\d+ :Float32; +# (.*positive.*)",
            SCHEMA_PATH.with_name(name).read_text(encoding="utf-8"),
        )
    ]
    assert len(said) >= 2
    assert all("positive turns right" in comment for comment in said)
    # x forward, y right, z down: heading grows to the right. 0.1 rad/s at 10 m/s is 1/100 1/m.
    plan = np.zeros((33, 15), np.float32)
    plan[:, 11], plan[:, 14] = 0.1 * T_IDXS, 0.1
    assert curvature_from_plan(plan, 10.0, 0.3) > 0.0


def test_defaults_of_absent_data() -> None:
    assert log.Event.new_message().valid is True
    assert car.CarParams.new_message().radarTimeStep == pytest.approx(0.05)
