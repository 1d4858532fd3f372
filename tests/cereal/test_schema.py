"""The wire: layout, framing and round trips of messages."""

import struct
from typing import Any

import capnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cereal.errors import MessageError
from cereal.schema import (
    SCHEMA_PATH,
    TRAVERSAL_BYTES,
    content,
    log,
    member_name,
    message_size,
    new_event,
    read_car_params,
    read_event,
    read_events,
    reading,
)

car: Any = capnp.load(str(SCHEMA_PATH.with_name("car.capnp")))
driving: Any = capnp.load(str(SCHEMA_PATH.with_name("driving.capnp")))
hardware: Any = capnp.load(str(SCHEMA_PATH.with_name("hardware.capnp")))
gnss: Any = capnp.load(str(SCHEMA_PATH.with_name("gnss.capnp")))
health: Any = capnp.load(str(SCHEMA_PATH.with_name("health.capnp")))

# (structure, id, data words, pointers) as openpilot's own compiled schema has them.
LAYOUTS = [
    (log.Event, 0xD314CFD957229C11, 2, 1),
    (log.XYZTData, 0xC3CBAE1FD505AE80, 0, 7),
    (log.ModelDataV2, 0xC4713F6B0D36ABE9, 6, 17),
    (log.ModelDataV2.LeadDataV3, 0xD698881AD0CE7FEB, 1, 9),
    (log.ModelDataV2.MetaData, 0xD1646AB3B45CFABD, 3, 3),
    (log.ModelDataV2.DisengagePredictions, 0x860AA5DDBCDC8D25, 0, 9),
    (log.ModelDataV2.Pose, 0xFB3EC0702E67884F, 0, 4),
    (log.ModelDataV2.Action, 0x94D0BCB35A764584, 2, 0),
    # 2 words until 2025; `big` @8 opened the third.
    (log.DrivingModelData, 0xE8F9BA819993A776, 3, 4),
    (log.DrivingModelData.PolyPath, 0xCA1E4710874D12B5, 0, 3),
    (log.DrivingModelData.LaneLineMeta, 0x996EF0369D7E5625, 2, 0),
    (log.DrivingModelData.MetaData, 0xA0CFCFA4ED19AC5D, 1, 0),
    (log.CameraOdometry, 0xFA9A296B9FD41A96, 2, 8),
    (log.DriverStateV2, 0xFC010C40147563B0, 3, 3),
    (log.DriverStateV2.DriverData, 0xC9F73BB1CDF28A6A, 5, 6),
    (log.FrameData, 0xEA0245F695AE0A33, 12, 7),
    (log.LiveCalibrationData, 0x96DF70754D8390BC, 2, 8),
    (log.DriverMonitoringStateV1, 0xB83CDA094A1DA284, 7, 2),
    (log.DriverMonitoringState, 0xA0DF507D7DF1052D, 2, 3),
    (log.LiveDelayData, 0x98DFDB22C44DF8D4, 3, 1),
    (log.DeviceState, 0xA4D8B5AF2AA492EB, 15, 11),
    (log.ChestnutState, 0x8FD70F1CB19DC3AA, 4, 0),
    (log.EncodeIndex, 0x89D394E3541735FC, 6, 0),
    (log.Thumbnail, 0xB65FCE64120AF7D3, 2, 1),
    (log.CanData, 0x8785009A964C7C59, 1, 1),
    (log.Sentinel, 0xEF0382D244F56E38, 1, 0),
    (log.InitData, 0xE71008CAEB3FB65C, 2, 21),
    (log.ManagerState, 0xCF7154B31A69635B, 0, 1),
    (log.ManagerState.ProcessState, 0x869A54D2708469EA, 2, 1),
    (car.CarState, 0x9DA4FA09E052903C, 10, 6),
    (car.CarState.CruiseState, 0xE64E81478E6E60AF, 2, 0),
    (car.CarState.ButtonEvent, 0xFF5CA6835B4ACEF6, 1, 0),
    (car.CarControl, 0xF78829049AB814AF, 4, 6),
    (car.CarControl.Actuators, 0xE97275A919432828, 5, 0),
    (car.CarParams, 0x8C69372490AAA9DA, 18, 14),
    # As compiled headers of openpilot releases have them, of structures that have not grown since.
    (gnss.GPSNMEAData, 0x9D291D7813BA4A88, 2, 1),
    (gnss.GpsLocationData, 0xE946524859ADD50E, 8, 1),
    (hardware.SensorEventData, 0xA2B29A69D44529A1, 4, 1),
    (hardware.SensorEventData.SensorVec, 0xA43429BD2BFC24FC, 1, 1),
    (hardware.PeripheralState, 0xCEB8F49734857A88, 2, 0),
    (driving.RadarState.LeadData, 0xB96F3AD9170CF085, 7, 0),
    (driving.ControlsState.LateralINDIState, 0x939463348632375E, 6, 0),
    (driving.ControlsState.LateralPIDState, 0xF28C5DC9E09375E3, 5, 0),
    (driving.ControlsState.LateralLQRState, 0x9024E2D790C82ADE, 3, 0),
    (driving.ControlsState.LateralAngleState, 0xA2E4EA88AC9980F1, 2, 0),
    (driving.ControlsState.LateralDebugState, 0xA63A46F0F2889B2D, 2, 0),
    (driving.LongitudinalPlan.GpsTrajectory, 0x8CFEB072F5301000, 0, 2),
    (driving.LiveLocationKalman.Measurement, 0xBF23F9ED66DACE1C, 1, 2),
    (hardware.AndroidLogEntry, 0xEA095DA1894F7D85, 3, 2),
    (hardware.ProcLog, 0xAF85387B3F681406, 0, 3),
    (hardware.ProcLog.CPUTimes, 0xF189C8C5BF2CE087, 5, 0),
    (hardware.ProcLog.Mem, 0xFD095F94F08B3FD4, 8, 0),
    (gnss.GnssMeasurements.CorrectedMeasurement, 0xEAA4A17D86AC76B0, 5, 3),
    (gnss.UbloxGnss, 0x85DDDD7CE6CEFA5D, 1, 1),
    (gnss.UbloxGnss.MeasurementReport, 0xA73BA546A29820F4, 2, 2),
    (gnss.UbloxGnss.MeasurementReport.Measurement, 0x8F8A655F5E326401, 5, 1),
    (gnss.UbloxGnss.IonoData, 0xC3A3A8DE519A4A26, 3, 2),
    (gnss.UbloxGnss.HwStatus, 0xEBB036B114275AA8, 2, 0),
    (gnss.UbloxGnss.HwStatus2, 0xF919B410B90E53C6, 2, 0),
    (gnss.QcomGnss, 0xDE94674B07AE51C1, 2, 1),
    (gnss.QcomGnss.MeasurementStatus, 0xE501010E1BCAE83B, 1, 0),
    (gnss.QcomGnss.MeasurementReport, 0xF580D7D86B7B8692, 4, 1),
    (gnss.QcomGnss.MeasurementReport.SV, 0xF10C595AE7BB2C27, 8, 1),
    (gnss.QcomGnss.ClockReport, 0xCA965E4ADD8F4F0B, 18, 0),
    (gnss.QcomGnss.DrMeasurementReport, 0x8053C39445C6C75C, 10, 1),
    (gnss.QcomGnss.DrMeasurementReport.SV, 0xF08B81DF8CBF459C, 12, 1),
    (hardware.Clocks, 0xC95FB49A7BDC4618, 5, 0),
    (hardware.Joystick, 0xE42401658E2715E2, 0, 2),
    (hardware.UploaderState, 0xDE266B39B76B461E, 3, 1),
    (hardware.UserBookmark, 0xFE346A9DE48D9B50, 0, 0),
    (hardware.UIDebug, 0xFE35AD896FFAEACF, 1, 0),
    (driving.NavInstruction.Lane, 0xA4CD1689C0A439D9, 1, 1),
    (driving.NavRoute, 0xA61452F6440D97D3, 0, 1),
    (driving.NavRoute.Coordinate, 0xC4C96F53AD1E7485, 1, 0),
    (driving.LiveTorqueParametersData, 0xE61690EB0B091692, 6, 1),
    (log.Boot, 0xA12E8670927A2549, 1, 5),
    (log.InitData.PandaInfo, 0xE673E8725CDFF0AD, 1, 3),
    (log.DeviceState.NetworkInfo, 0x9D57532D82C04AFC, 1, 5),
    (log.DeviceState.NetworkStats, 0xB98C64EA27898EA0, 2, 0),
    # Grown since those headers; by what, is counted behind.
    (driving.RadarState, 0x9A185389D6FDD05F, 5, 6),  # 5, 5: radarErrors
    (driving.ControlsState, 0x97FF69C53601ABF1, 24, 6),
    (driving.LongitudinalPlan, 0xE00B5B3EBA12876C, 11, 6),  # 10, 6: execution time, boost
    (driving.LateralPlan, 0xE1E9318E2AE8B51E, 9, 9),
    (driving.LiveLocationKalman, 0xEBC5703D1EE7C129, 5, 15),  # 4, 14: first fix, filter state
    (driving.LiveParametersData, 0xD9058DCB967C2753, 7, 2),  # 7, 0: two filter states
    (driving.ControlsState.LateralTorqueState, 0xE774A050CBF689A4, 6, 0),  # 5, 0: jerk, version
    (driving.NavInstruction, 0xC18216B27F8602AF, 3, 6),  # 3, 5: allManeuvers
    (hardware.ProcLog.Process, 0xB0B85613F19E6D28, 12, 3),  # 9, 3: three sizes
    (hardware.PandaState, 0xA7649E2575E4591E, 10, 4),  # 8, 4: voltages and more
    (hardware.PandaState.PandaCanState, 0xF8D2972DEB0CD45C, 8, 0),  # 6, 0: rates of interrupts
    (gnss.GnssMeasurements, 0xAFD47016570E9D09, 3, 6),  # 3, 4: positions, ephemerides
    (gnss.UbloxGnss.Ephemeris, 0xD8418C788118F85C, 34, 2),  # 33, 2: one word of times
    (gnss.QcomGnss.DrSvPolyReport, 0xB1FB80811A673270, 8, 4),  # 7, 4: gpsTow
    (log.EncodeData, 0xCF9AEAB355DD85F0, 2, 3),  # 1, 3: width, height
    # Younger than those headers: counted by hand from the ordinals and types.
    (driving.LivePose, 0xC24CA2B57206B44D, 2, 5),
    (driving.LivePose.XYZMeasurement, None, 4, 0),
    (driving.OnroadEvent, 0xC4FA6047F024E718, 1, 0),
    (driving.SelfdriveState, 0xB52430DC48F4A83B, 2, 3),
    (driving.DriverAssistance, 0x9B669F73A9C1CFBC, 1, 0),
    (hardware.SoundPressure, 0xDC24138990726023, 2, 0),
    (hardware.AudioData, 0xA4E671DB37B8ADE5, 1, 1),
    (hardware.Touch, 0x8795CD2944FAEAB6, 4, 0),
    (car.CarOutput, 0xD817D6655115CA85, 0, 1),
    (car.RadarData, 0x888AD6581CF0AACB, 0, 4),
    (car.RadarData.RadarPoint, None, 4, 0),
    # Our own, counted by hand from the ordinals and types.
    (health.ModeldHealth, 0xB4E19C7D2F6A8350, 15, 17),
    (health.ModeldHealth.SelfTest, None, 1, 1),
    (health.ModeldHealth.Fault, None, 2, 1),
    (health.ModeldHealth.Stage, None, 1, 2),
    (health.ModeldHealth.Temperature, None, 1, 1),
    (health.ModeldHealth.Setting, None, 1, 3),
]

# Offsets in units of the field's own width, counted by hand: fields fill holes in ordinal order.
OFFSETS = [
    # Seven float32 and bools precede: vEgo is float 0; the bools begin in the third word, bit 64.
    (car.CarState, "vEgo", 0),
    (car.CarState, "gasPressed", 64),
    (car.CarState, "brakePressed", 65),
    (car.CarState, "steeringPressed", 66),
    (car.CarState, "brakeLights", 68),
    (car.CarState, "leftBlinker", 69),
    (car.CarState, "rightBlinker", 70),
    (car.CarState, "canValid", 74),
    (car.CarState, "clutchPressed", 75),
    (car.CarState, "espDisabled", 79),
    # Bits 64..79 are full and gearShifter has 80..95: a new 32-bit hole was opened at 352.
    (car.CarState, "leftBlindspot", 352),
    (car.CarState, "rightBlindspot", 353),
    (car.CarState, "canRcvTimeout", 363),
    (car.CarState, "engineRpm", 15),
    (car.CarControl, "latActive", 2),
    (log.FrameData, "frameId", 0),
    (log.FrameData, "timestampEof", 1),
    (log.ModelDataV2, "frameId", 0),
    (log.ModelDataV2, "timestampEof", 2),
    (log.Event, "logMonoTime", 0),
    (log.Event, "valid", 80),
    # Ten float32, two bools in the word they open, float32 behind them, a bool in the old hole.
    (driving.RadarState.LeadData, "aLeadK", 9),
    (driving.RadarState.LeadData, "status", 321),
    (driving.RadarState.LeadData, "aLeadTau", 11),
    (driving.RadarState.LeadData, "radar", 322),
    (driving.RadarState.LeadData, "radarTrackId", 13),
    # The flags leave room for a 32-bit and a 16-bit number in their word.
    (gnss.GpsLocationData, "latitude", 1),
    (gnss.GpsLocationData, "speed", 1),
    (gnss.GpsLocationData, "bearingDeg", 8),
    (gnss.GpsLocationData, "source", 1),
    (gnss.GpsLocationData, "unixTimestampMillis", 5),
    (gnss.GpsLocationData, "hasFix", 480),
    (gnss.GpsLocationData, "satelliteCount", 61),
    (hardware.SensorEventData, "timestamp", 2),
    (hardware.SensorEventData, "source", 7),
    (hardware.SensorEventData, "uncalibrated", 192),
    (hardware.SensorEventData, "temperature", 7),
    (driving.ControlsState, "uiAccelCmd", 5),
    (driving.ControlsState, "enabled", 704),
    (driving.ControlsState, "vCruise", 23),
    (driving.ControlsState, "longitudinalPlanMonoTime", 13),
    (driving.ControlsState, "longControlState", 45),
    (driving.ControlsState, "state", 58),
    (driving.ControlsState, "active", 707),
    (driving.ControlsState, "curvature", 34),
    (driving.LongitudinalPlan, "modelMonoTime", 3),
    (hardware.PandaState, "safetyModel", 14),
    (driving.LivePose, "timestamp", 1),
    # A number of 32 bits, a hole of as many, then the float64 in the second word.
    (health.ModeldHealth, "processId", 0),
    (health.ModeldHealth, "uptime", 1),
    (health.ModeldHealth, "isFallback", 32),
    (health.ModeldHealth, "warmUpRunsLeft", 4),
    (health.ModeldHealth, "frames", 3),
    (health.ModeldHealth, "frameId", 5),
    (health.ModeldHealth, "publicationAge", 14),
    (health.ModeldHealth, "majorFaults", 14),
]


@pytest.mark.parametrize(("kind", "number", "words", "pointers"), LAYOUTS)
def test_layout_of_structures_is_the_published_one(
    kind: Any, number: int | None, words: int, pointers: int
) -> None:
    node = kind.schema.node
    assert (node.struct.dataWordCount, node.struct.pointerCount) == (words, pointers)
    assert number in (None, node.id)


@pytest.mark.parametrize(("kind", "field", "offset"), OFFSETS)
def test_offset_of_used_fields_is_the_published_one(kind: Any, field: str, offset: int) -> None:
    fields = {one.name: one for one in kind.schema.node.struct.fields}
    assert fields[field].slot.offset == offset


def test_event_declares_every_ordinal_from_0_to_154_once() -> None:
    ordinals = sorted(one.ordinal.explicit for one in log.Event.schema.node.struct.fields)
    assert ordinals == list(range(155))


@pytest.mark.parametrize(
    ("member", "ordinal"),
    [
        ("roadCameraState", 2),
        ("deviceState", 6),
        ("liveCalibration", 19),
        ("carState", 22),
        ("carControl", 23),
        ("cameraOdometry", 63),
        ("carParams", 69),
        ("driverMonitoringState", 71),
        ("wideRoadCameraState", 74),
        ("modelV2", 75),
        ("driverStateV2", 92),
        ("drivingModelData", 128),
        ("liveDelay", 146),
        ("dmonitoringmodeldHealth", 144),
        ("modeldHealth", 145),
        ("driverMonitoringStateV2", 151),
    ],
)
def test_member_has_its_ordinal(member: str, ordinal: int) -> None:
    fields = {one.name: one for one in log.Event.schema.node.struct.fields}
    assert fields[member].ordinal.explicit == ordinal


def test_every_structure_declares_its_ordinals_without_gaps() -> None:
    for kind, *_ in LAYOUTS:
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
    for kind, *_ in LAYOUTS:
        assert not set(kind.schema.fieldnames) & (reserved - set(kind.schema.fieldnames)), kind
        assert not set(kind.schema.fieldnames) & {"schema", "which", "to_dict", "total_size"}


def test_no_field_of_our_own_message_hides_the_events() -> None:
    """Tables have SERVICE.valid and SERVICE.logMonoTime beside the fields of the message."""
    assert not set(health.ModeldHealth.schema.fieldnames) & {"valid", "logMonoTime"}


def test_message_of_an_older_generation_is_read() -> None:
    """livePose before `timestamp`: one data word; what is missing has its default."""
    words = [
        10 << 32,  # one segment of 10 words
        0x0001_0002_0000_0000,  # root: 2 data words, 1 pointer
        9,  # logMonoTime
        129 - 2,  # which: @129, less logMonoTime and valid
        0x0005_0001_0000_0000,  # livePose: 1 data word, 5 pointers, right behind
        0b101,  # inputsOK, sensorsOK
    ]
    data = struct.pack("<6Q", *words) + bytes(40)  # five null pointers
    pose = read_event(data).livePose
    assert (pose.inputsOK, pose.posenetOK, pose.sensorsOK) == (True, False, True)
    assert pose.timestamp == 0
    assert pose.velocityDevice.x == 0.0


def test_message_of_a_newer_generation_is_read() -> None:
    """driverAssistance with a word that we do not know: it is passed over."""
    words = (6 << 32, 0x0001_0002_0000_0000, 9, 130, 0x0000_0002_0000_0000, 0b10, 0xFFFF)
    event = read_event(struct.pack("<7Q", *words))
    assert member_name(event) == "driverAssistance"
    assert event.driverAssistance.rightLaneDeparture
    assert not event.driverAssistance.leftLaneDeparture


def test_enumerant_newer_than_the_schema_is_one_typed_error() -> None:
    event = new_event("onroadEvents", mono_time_ns=1, size=1)
    event.onroadEvents[0].name = "userBookmarkNotPaired"
    data = event.to_bytes()
    known = struct.pack("<H", 104)
    assert data.count(known) == 1
    newer = read_event(data.replace(known, struct.pack("<H", 999)))
    with pytest.raises(MessageError, match="here: expected a whole message"), reading("here"):
        str(newer.onroadEvents[0].name)


def test_damage_inside_a_message_is_one_typed_error() -> None:
    event = new_event("modelV2", mono_time_ns=1)
    event.modelV2.position.x = [1.0] * 100
    data = bytearray(event.to_bytes())
    place = data.index(struct.pack("<I", 100 << 3 | 4)) - 4  # of the pointer to 100 float32
    data[place : place + 4] = struct.pack("<I", (1 << 20) << 2 | 1)  # a million words further
    reader = read_event(bytes(data))
    with pytest.raises(MessageError, match=r"rlog, event 3: expected"), reading("rlog, event 3"):
        assert list(reader.modelV2.position.x)


def test_endless_list_is_refused() -> None:
    """A list of half a billion elements of no size fits into one word."""
    endless = (2**29 - 1) << 3
    words = (4 << 32, 0x0001_0002_0000_0000, 9, 79, 1 | endless << 32)
    event = read_event(struct.pack("<5Q", *words))
    assert member_name(event) == "pandaStates"
    with pytest.raises(MessageError, match="here: expected a whole message"), reading("here"):
        assert event.pandaStates


def test_one_reader_follows_a_bounded_number_of_bytes() -> None:
    event = new_event("modelV2", mono_time_ns=1)
    event.modelV2.position.x = [1.0] * 1000
    data = event.to_bytes()
    reader = read_event(data)
    # Each time the list counts its 500 words, and the pointers to it a few.
    at_most = (TRAVERSAL_BYTES + 64 * len(data)) // 4000
    followed = (len(reader.modelV2.position.x) for _ in range(at_most + 1))
    with pytest.raises(MessageError, match="here: expected a whole message"), reading("here"):
        sum(followed)
    assert len(read_event(data).modelV2.position.x) == 1000


def test_car_params_are_read_without_an_event_around_them() -> None:
    event = new_event("carParams", mono_time_ns=1)
    event.carParams.carFingerprint = "HONDA CIVIC"
    event.carParams.longitudinalActuatorDelay = 0.25
    data = event.carParams.as_reader().as_builder().to_bytes()
    assert data != event.to_bytes()
    assert read_car_params(data).carFingerprint == "HONDA CIVIC"
    assert read_car_params(data).longitudinalActuatorDelay == 0.25
    with pytest.raises(MessageError, match="CarParams: expected"):
        read_car_params(b"garbage!")
    with pytest.raises(MessageError, match="multiple of 8"):
        read_car_params(data[:-3])


def test_camera_odometry_has_the_words_computed_by_hand() -> None:
    event = new_event("cameraOdometry", mono_time_ns=0x1122334455667788, valid=False)
    event.cameraOdometry.frameId = 0xCAFE
    event.cameraOdometry.timestampEof = 7
    words = struct.unpack("<15Q", event.to_bytes())
    assert words == (
        14 << 32,  # one segment of 14 words
        0x0001_0002_0000_0000,  # root: 2 data words, 1 pointer, right behind
        0x1122334455667788,  # logMonoTime
        # The discriminant counts the union's members in order of ordinals: @1 is 0, so @63 is 62.
        62 | 1 << 16,  # and the inverted valid in bit 80
        0x0008_0002_0000_0000,  # CameraOdometry: 2 data words, 8 pointers, right behind
        0xCAFE,
        7,
        *[0] * 8,
    )


def test_valid_true_is_stored_as_a_cleared_bit() -> None:
    event = new_event("cameraOdometry", mono_time_ns=0, valid=True)
    words = struct.unpack_from("<4Q", event.to_bytes())
    assert words[3] == 62


def test_discriminant_skips_valid() -> None:
    # `valid` @67 stands among the members but is none: from @68 on the count is ordinal - 2.
    words = struct.unpack_from("<4Q", new_event("modelV2", mono_time_ns=0, valid=True).to_bytes())
    assert words[3] == 73


def test_new_event_is_not_valid_unless_told() -> None:
    assert not read_event(new_event("modelV2", mono_time_ns=1).to_bytes()).valid


@pytest.mark.parametrize("member", ["can", "onroadEvents", "logMessage", "ubloxRaw"])
def test_new_event_takes_a_size_for_lists_and_blobs(member: str) -> None:
    event = read_event(new_event(member, mono_time_ns=1, size=3).to_bytes())
    assert member_name(event) == member
    assert len(content(event)) == (0 if member == "logMessage" else 3)


def test_new_event_refuses_a_size_for_structures() -> None:
    with pytest.raises(MessageError, match="modelV2: expected no size"):
        new_event("modelV2", mono_time_ns=1, size=3)


def test_new_event_refuses_unknown_members() -> None:
    with pytest.raises(MessageError, match="got 'nothing'"):
        new_event("nothing", mono_time_ns=1)


def test_new_event_takes_the_names_of_2026() -> None:
    event = new_event("narrowRoadCameraState", mono_time_ns=1)
    assert member_name(event) == "roadCameraState"


def test_read_event_accepts_several_segments() -> None:
    event = log.Event.new_message(num_first_segment_words=1, logMonoTime=3)
    event.init("modelV2").frameId = 9
    event.modelV2.position.x = [1.0] * 5000
    data = event.to_bytes()
    assert struct.unpack_from("<I", data)[0] > 0
    assert message_size(data) == len(data)
    assert list(read_event(data).modelV2.position.x) == [1.0] * 5000


def test_read_event_accepts_any_alignment() -> None:
    event = new_event("modelV2", mono_time_ns=3)
    event.modelV2.frameId = 9
    data = event.to_bytes()
    for shift in range(8):
        shifted = memoryview(b"x" * shift + data)[shift:]
        assert read_event(shifted).modelV2.frameId == 9


def test_reader_outlives_the_bytes() -> None:
    event = new_event("carState", mono_time_ns=3)
    event.carState.vEgo = 12.5
    reader = read_event(event.to_bytes()).carState
    del event
    np.ones(1 << 16)  # something to overwrite freed memory with
    assert reader.vEgo == 12.5


def test_read_event_refuses_every_truncation() -> None:
    event = new_event("modelV2", mono_time_ns=3)
    event.modelV2.position.x = [1.0, 2.0]
    data = event.to_bytes()
    for end in range(len(data)):
        with pytest.raises(MessageError):
            read_event(data[:end])


def test_content_of_a_member_newer_than_the_schema_is_an_error() -> None:
    data = bytearray(new_event("modelV2", mono_time_ns=3).to_bytes())
    struct.pack_into("<H", data, 24, 400)
    event = read_event(bytes(data))
    assert member_name(event) is None
    with pytest.raises(MessageError, match="skip the message"):
        content(event)


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_read_event_never_fails_otherwise_on_garbage(data: bytes) -> None:
    try:
        event = read_event(data)
        name = member_name(event)
        if name is not None:
            content(event)
    except MessageError:
        pass


floats = st.lists(st.floats(width=32, allow_nan=False), max_size=40)
uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)


@given(
    uint32, uint64, st.floats(width=32, allow_nan=False), floats, st.lists(floats, max_size=4),
    st.binary(max_size=100),
)  # fmt: skip
@settings(deadline=None)
def test_model_round_trip(
    frame_id: int, eof: int, percent: float, xs: list[float], lanes: list[list[float]], raw: bytes
) -> None:
    event = new_event("modelV2", mono_time_ns=eof, valid=True)
    model = event.modelV2
    model.frameId = frame_id
    model.timestampEof = eof
    model.frameDropPerc = percent
    model.position.x = xs
    model.rawPredictions = raw
    model.confidence = "green"
    model.meta.laneChangeState = "laneChangeStarting"
    lines = model.init("laneLines", len(lanes))
    for line, values in zip(lines, lanes, strict=True):
        line.y = values
    data = event.to_bytes()
    back = read_event(data)
    assert back.valid
    assert back.logMonoTime == eof
    model = content(back)
    assert (model.frameId, model.timestampEof, model.frameDropPerc) == (frame_id, eof, percent)
    assert list(model.position.x) == xs
    assert [list(line.y) for line in model.laneLines] == lanes
    assert model.rawPredictions == raw
    assert model.confidence == "green"
    assert model.meta.laneChangeState == "laneChangeStarting"


@given(st.lists(st.tuples(uint32, uint64, st.sampled_from(["ar0231", "os04c10"])), max_size=8))
@settings(deadline=None)
def test_events_in_a_row_come_back_in_order(rows: list[tuple[int, int, str]]) -> None:
    data = b""
    for frame_id, sof, sensor in rows:
        event = new_event("roadCameraState", mono_time_ns=sof)
        event.roadCameraState.frameId = frame_id
        event.roadCameraState.timestampSof = sof
        event.roadCameraState.sensor = sensor
        data += event.to_bytes()
    states = [event.roadCameraState for event in read_events(data)]
    assert [(s.frameId, s.timestampSof, str(s.sensor)) for s in states] == rows


def test_events_that_end_inside_a_message_are_an_error_after_the_whole_ones() -> None:
    one = new_event("carState", mono_time_ns=1).to_bytes()
    events = read_events(one + one[:-8])
    assert next(events).logMonoTime == 1
    with pytest.raises(MessageError, match=f"at byte {len(one)}"):
        next(events)


def test_message_size_refuses_what_is_no_frame() -> None:
    with pytest.raises(MessageError, match="513 segments"):
        message_size(struct.pack("<II", 512, 1) + bytes(8))
    with pytest.raises(MessageError, match="0 words"):
        message_size(bytes(16))
    assert message_size(b"1234567") is None
    assert message_size(struct.pack("<II", 2, 1)) is None


def test_defaults_of_absent_data() -> None:
    assert log.Event.new_message().valid is True
    assert car.CarParams.new_message().radarTimeStep == pytest.approx(0.05)
