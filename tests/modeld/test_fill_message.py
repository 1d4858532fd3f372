"""Fields of the three messages by hand; the bytes of modelV2 that are patched instead of filled."""

import math
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cereal.schema import new_event, read_event
from modeld.constants import T_IDXS, X_IDXS
from modeld.errors import InternalError
from modeld.outputs.fill_message import (
    FrameInfo,
    ModelMessage,
    fill_camera_odometry,
    fill_driving_model_data,
    fill_model_v2,
    fill_outputs,
    path_coefficients,
)
from modeld.outputs.parse_outputs import DrivingOutputs
from modeld.outputs.verdict import Action, Confidence, FrameVerdict
from modeld.vehicle.desire import LaneChangeDirection, LaneChangeState
from tests.modeld.bench import check_fields

SHAPES: dict[str, tuple[int, ...]] = {
    "plan": (33, 15),
    "lane_lines": (4, 33, 2),
    "lane_lines_prob": (8,),
    "road_edges": (2, 33, 2),
    "lead": (3, 6, 4),
    "lead_prob": (3,),
    "desire_state": (8,),
    "desire_pred": (4, 8),
    "meta": (55,),
    "pose": (6,),
    "wide_from_device_euler": (3,),
    "road_transform": (6,),
}
FRAME = FrameInfo(
    frame_id=12,
    frame_id_extra=13,
    frame_age=2,
    frame_drop_percent=1.5,
    dropped=0,
    timestamp_eof_ns=987_654_321,
    execution_time_s=0.025,
    valid=True,
)
VERDICT = FrameVerdict(
    action=Action(curvature_1pm=0.01, acceleration_mps2=-0.5, should_stop=True),
    confidence=Confidence.YELLOW,
    hard_brake_predicted=True,
    lane_change_state=LaneChangeState.STARTING,
    lane_change_direction=LaneChangeDirection.RIGHT,
)


def make_outputs() -> DrivingOutputs:
    """Outputs in which every number occurs once, so that a swapped field shows."""
    values: dict[str, NDArray[np.float32]] = {}
    start = 0
    for item in fields(DrivingOutputs):
        shape = SHAPES.get(item.name.removesuffix("_stds"))
        if shape is not None:
            size = math.prod(shape)
            values[item.name] = np.arange(start, start + size, dtype=np.float32).reshape(shape)
            start += size
    return DrivingOutputs(**values, mixtures={})


OUTPUTS = make_outputs()


def event_of(
    service: str,
    outputs: DrivingOutputs = OUTPUTS,
    frame: FrameInfo = FRAME,
    verdict: FrameVerdict = VERDICT,
    raw: bytes | None = None,
) -> Any:
    event = new_event(service, mono_time_ns=77)
    if service == "modelV2":
        fill_model_v2(event, outputs, frame, verdict, raw)
    elif service == "drivingModelData":
        fill_driving_model_data(event, outputs, frame, verdict)
    else:
        fill_camera_odometry(event, outputs, frame)
    return event


def filled(service: str, *arguments: Any) -> Any:
    """Fill a message, send it through its wire form and return the reader."""
    event = read_event(event_of(service, *arguments).to_bytes())
    assert event.valid
    return getattr(event, service)


PLAN = {"position": 0, "velocity": 3, "acceleration": 6, "orientation": 9, "orientationRate": 12}
DISENGAGE = (
    *("gasDisengage", "brakeDisengage", "steerOverride"),
    *(f"brake{n}MetersPerSecondSquared" for n in (3, 4, 5)),
)
MODEL: dict[str, Any] = {
    "frameId": 12,
    "frameIdExtra": 13,
    "frameAge": 2,
    "frameDropPerc": 1.5,
    "timestampEof": 987_654_321,
    "modelExecutionTime": 0.025,
    "rawPredictions": b"",
    "confidence": "yellow",
    "action.desiredCurvature": 0.01,
    "action.desiredAcceleration": -0.5,
    "action.shouldStop": True,
    **{f"{name}.t": T_IDXS for name in PLAN},
    **{
        f"{name}.{axis}": OUTPUTS.plan[:, column + index]
        for name, column in PLAN.items()
        for index, axis in enumerate("xyz")
    },
    **{f"position.{axis}Std": OUTPUTS.plan_stds[:, i] for i, axis in enumerate("xyz")},
    "velocity.xStd": [],
    **{
        f"{name}.{line}.{axis}": value
        for name, lines in (("laneLines", OUTPUTS.lane_lines), ("roadEdges", OUTPUTS.road_edges))
        for line, points in enumerate(lines)
        for axis, value in {"x": X_IDXS, "y": points[:, 0], "z": points[:, 1], "t": []}.items()
    },
    "laneLineStds": OUTPUTS.lane_lines_stds[:, 0, 0],
    "laneLineProbs": OUTPUTS.lane_lines_prob[[1, 3, 5, 7]],
    "roadEdgeStds": OUTPUTS.road_edges_stds[:, 0, 0],
    **{
        f"leadsV3.{lead}.{name}": value
        for lead in range(3)
        for name, value in {
            "probTime": 2.0 * lead,
            "prob": OUTPUTS.lead_prob[lead],
            "t": [0, 2, 4, 6, 8, 10],
            **{axis: OUTPUTS.lead[lead, :, i] for i, axis in enumerate("xyva")},
            **{f"{axis}Std": OUTPUTS.lead_stds[lead, :, i] for i, axis in enumerate("xyva")},
        }.items()
    },
    "meta.engagedProb": OUTPUTS.meta[0],
    "meta.desireState": OUTPUTS.desire_state,
    "meta.desirePrediction": OUTPUTS.desire_pred.reshape(-1),
    "meta.hardBrakePredicted": True,
    "meta.laneChangeState": "laneChangeStarting",
    "meta.laneChangeDirection": "right",
    "meta.disengagePredictions.t": [2, 4, 6, 8, 10],
    **{
        f"meta.disengagePredictions.{name}Probs": OUTPUTS.meta[1 + index :: 6][:5]
        for index, name in enumerate(DISENGAGE)
    },
    "meta.disengagePredictions.gasPressProbs": OUTPUTS.meta[31::4],
    "meta.disengagePredictions.brakePressProbs": OUTPUTS.meta[32::4],
    # Of a head that this model does not have.
    **{f"temporalPose.{name}": [] for name in ("trans", "rot", "transStd", "rotStd")},
}
DATA: dict[str, Any] = {
    "frameId": 12,
    "frameIdExtra": 13,
    "frameDropPerc": 1.5,
    "modelExecutionTime": 0.025,
    "action.desiredCurvature": 0.01,
    "action.desiredAcceleration": -0.5,
    "action.shouldStop": True,
    "meta.laneChangeState": "laneChangeStarting",
    "meta.laneChangeDirection": "right",
    "laneLineMeta.leftY": OUTPUTS.lane_lines[1, 0, 0],
    "laneLineMeta.rightY": OUTPUTS.lane_lines[2, 0, 0],
    "laneLineMeta.leftProb": OUTPUTS.lane_lines_prob[3],
    "laneLineMeta.rightProb": OUTPUTS.lane_lines_prob[5],
    **{
        f"path.{axis}Coefficients": path_coefficients(OUTPUTS.plan)[index]
        for index, axis in enumerate("xyz")
    },
}
ODOMETRY: dict[str, Any] = {
    "frameId": 12,
    "timestampEof": 987_654_321,
    "trans": OUTPUTS.pose[:3],
    "rot": OUTPUTS.pose[3:],
    "transStd": OUTPUTS.pose_stds[:3],
    "rotStd": OUTPUTS.pose_stds[3:],
    "wideFromDeviceEuler": OUTPUTS.wide_from_device_euler,
    "wideFromDeviceEulerStd": OUTPUTS.wide_from_device_euler_stds,
    "roadTransformTrans": OUTPUTS.road_transform[:3],
    "roadTransformTransStd": OUTPUTS.road_transform_stds[:3],
}


@pytest.mark.parametrize(
    ("service", "expected"),
    [("modelV2", MODEL), ("drivingModelData", DATA), ("cameraOdometry", ODOMETRY)],
    ids=["modelV2", "drivingModelData", "cameraOdometry"],
)
def test_every_field(service: str, expected: dict[str, Any]) -> None:
    message = filled(service)
    check_fields(message, expected)
    if service == "modelV2":
        assert [len(message.laneLines), len(message.roadEdges), len(message.leadsV3)] == [4, 2, 3]


# Meta's width: how far horizons are apart, and the columns of pressed pedals.
@pytest.mark.parametrize(
    ("width", "step", "gas", "brake"),
    [
        (48, 7, [], []),
        (53, 8, [7, 15, 23, 31, 39], [8, 16, 24, 32, 40]),
        (55, 6, [*range(31, 55, 4)], [*range(32, 55, 4)]),
    ],
)
def test_disengagements_of_the_three_layouts(
    width: int, step: int, gas: list[int], brake: list[int]
) -> None:
    meta = filled("modelV2", replace(OUTPUTS, meta=np.arange(width, dtype=np.float32))).meta
    horizons = np.arange(5) * step
    columns: dict[str, Any] = {
        f"{name}Probs": 1 + index + horizons for index, name in enumerate(DISENGAGE)
    }
    columns |= {"t": [2, 4, 6, 8, 10], "gasPressProbs": gas, "brakePressProbs": brake}
    check_fields(meta, {"engagedProb": 0.0})
    check_fields(meta.disengagePredictions, columns)


def test_what_only_some_models_have() -> None:
    pose = np.arange(6, dtype=np.float32)
    outputs = replace(OUTPUTS, sim_pose=pose, sim_pose_stds=pose + 10)
    model = filled("modelV2", outputs, FRAME, VERDICT, b"\x01\x02\x03\x04")
    check_fields(model.temporalPose, {"trans": [0, 1, 2], "rot": [3, 4, 5]})
    check_fields(model.temporalPose, {"transStd": [10, 11, 12], "rotStd": [13, 14, 15]})
    assert model.rawPredictions == b"\x01\x02\x03\x04"
    for service in ("modelV2", "drivingModelData"):
        assert not filled(service).big
        assert filled(service, OUTPUTS, replace(FRAME, big=True)).big


@pytest.mark.parametrize(
    ("changes", "valid", "odometry"),
    [({}, True, True), ({"dropped": 1}, True, False), ({"valid": False}, False, False)],
)
def test_camera_odometry_is_valid_only_without_a_gap(
    changes: dict[str, Any], valid: bool, odometry: bool
) -> None:
    frame = replace(FRAME, **changes)
    found = [event_of(service, OUTPUTS, frame).valid for service in ("modelV2", "drivingModelData")]
    assert found == [valid] * 2
    assert event_of("cameraOdometry", OUTPUTS, frame).valid is odometry


def test_path_coefficients_are_those_of_a_polynomial() -> None:
    plan = np.zeros((33, 15), np.float32)
    plan[:, 0] = 1 + 20 * T_IDXS - 0.5 * T_IDXS**2
    plan[:, 1] = 0.25 * T_IDXS
    plan[:, 2] = 0.001 * T_IDXS**4
    expected = [[1, 20, -0.5, 0, 0], [0, 0.25, 0, 0, 0], [0, 0, 0, 0, 0.001]]
    np.testing.assert_allclose(path_coefficients(plan), expected, atol=1e-4)
    plan = np.random.default_rng(3).normal(size=(33, 15)).astype(np.float32)
    fit = np.polynomial.polynomial.polyfit(T_IDXS, plan[:, :3].astype(np.float64), 4)
    np.testing.assert_allclose(path_coefficients(plan), fit.T, rtol=1e-6, atol=1e-9)


# --- modelV2 is filled once, and its bytes are patched with each frame ------------------------


def same_bytes(
    message: ModelMessage,
    outputs: DrivingOutputs,
    frame: FrameInfo = FRAME,
    verdict: FrameVerdict = VERDICT,
    raw: bytes | None = None,
) -> None:
    anew = event_of("modelV2", outputs, frame, verdict, raw).to_bytes()
    assert message.fill(77, frame, verdict, raw) == anew


POSE = np.zeros((2, 6), np.float32)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"meta": np.zeros(48, np.float32)},
        {"meta": np.zeros(53, np.float32)},
        {"sim_pose": POSE[0], "sim_pose_stds": POSE[1]},
        {"action": np.zeros(2, np.float32)},
        {"plan": np.zeros(2000, np.float32)[:495].reshape(33, 15)},  # a slice of a vector
    ],
)
def test_each_frame_is_what_a_message_filled_anew_is(changes: dict[str, Any]) -> None:
    outputs = replace(make_outputs(), **changes)
    message = ModelMessage(outputs)
    rng = np.random.default_rng(3)
    for number in range(50):
        # Other numbers in the arrays, as a parser writes them.
        for one in fields(outputs):
            array = getattr(outputs, one.name)
            if isinstance(array, np.ndarray):
                array[...] = rng.normal(0.0, 100.0, array.shape)
        frame = replace(FRAME, frame_id=number, valid=bool(number % 3), dropped=number)
        action = replace(VERDICT.action, curvature_1pm=float(rng.normal()), should_stop=False)
        verdict = replace(VERDICT, action=action, hard_brake_predicted=bool(number % 2))
        same_bytes(message, outputs, frame, verdict)


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -0.0, 1e-42, 2.0**22 + 5])
def test_numbers_pass_as_bits(value: float) -> None:
    outputs = make_outputs()
    message = ModelMessage(outputs)
    outputs.plan[7, 2] = outputs.lead[2, 5, 3] = outputs.meta[0] = value
    same_bytes(message, outputs)


def test_raw_vectors_come_along_and_nothing_grows_or_warns() -> None:
    outputs = make_outputs()
    message = ModelMessage(outputs)
    same_bytes(message, outputs)
    same_bytes(message, outputs, raw=b"\x01\x02\x03\x04")
    same_bytes(message, outputs)
    # Fields of the frame are never taken for outputs, whatever their bits.
    bits: Any = np.float32(2.0**22 + 3).view(np.uint32)
    frame = replace(FRAME, frame_id=int(bits), execution_time_s=2.0**22 + 3)
    same_bytes(message, outputs, frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sizes = {len(message.fill(number, FRAME, VERDICT)) for number in range(200)}
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("field", "compute"),
    [
        ("meta.engagedProb", lambda outputs: outputs.meta[0] - outputs.meta[1]),
        ("meta.engagedProb", lambda outputs: 2 * outputs.meta[0]),
        ("meta.engagedProb", lambda outputs: outputs.meta.max()),
        ("meta.hardBrakePredicted", lambda outputs: outputs.meta[1] > 0.5),
        ("meta.hardBrakePredicted", lambda outputs: outputs.meta[1] < 0.5),
        ("timestampEof", lambda outputs: int(outputs.plan[0, 0])),
    ],
    ids=["difference", "product", "choice", "above", "below", "integer"],
)
def test_a_number_that_is_computed_of_outputs_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, field: str, compute: Callable[[DrivingOutputs], Any]
) -> None:
    def fill(event: Any, outputs: DrivingOutputs) -> None:
        fill_outputs(event, outputs)
        *path, name = field.split(".")
        value = compute(outputs)
        builder = event.modelV2
        for step in path:
            builder = getattr(builder, step)
        setattr(builder, name, value.item() if isinstance(value, np.generic) else value)

    monkeypatch.setattr("modeld.outputs.fill_message.fill_outputs", fill)
    with pytest.raises(InternalError, match=f"modelV2: {field.split('.')[0]}: expected copies"):
        ModelMessage(make_outputs())
