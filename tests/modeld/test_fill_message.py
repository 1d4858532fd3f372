import math
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cereal.schema import new_event, read_event
from modeld.actions import Action
from modeld.confidence import Confidence
from modeld.constants import T_IDXS, X_IDXS
from modeld.desire import LaneChangeDirection, LaneChangeState
from modeld.fill_message import (
    FrameInfo,
    FrameVerdict,
    fill_camera_odometry,
    fill_driving_model_data,
    fill_model_v2,
    path_coefficients,
)
from modeld.parse_outputs import DrivingOutputs

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


def filled(service: str, fill: Callable[[Any], None]) -> Any:
    """Fill an event, send it through its wire form and return the reader."""
    event = new_event(service, mono_time_ns=1)
    fill(event)
    return read_event(event.to_bytes())


def same(field: Iterable[float], expected: NDArray[Any] | list[float]) -> bool:
    return np.array_equal(np.array(list(field), np.float32), np.asarray(expected, np.float32))


@pytest.fixture(scope="module")
def model_event() -> Any:
    return filled("modelV2", lambda event: fill_model_v2(event, OUTPUTS, FRAME, VERDICT))


def test_model_v2_frame_fields(model_event: Any) -> None:
    model = model_event.modelV2
    assert model_event.valid
    assert (model.frameId, model.frameIdExtra, model.frameAge) == (12, 13, 2)
    assert model.frameDropPerc == 1.5
    assert model.timestampEof == 987_654_321
    assert model.modelExecutionTime == pytest.approx(0.025)
    assert len(model.rawPredictions) == 0


def test_model_v2_plan(model_event: Any) -> None:
    model = model_event.modelV2
    for name, column in (
        ("position", 0),
        ("velocity", 3),
        ("acceleration", 6),
        ("orientation", 9),
        ("orientationRate", 12),
    ):
        curve = getattr(model, name)
        assert same(curve.t, T_IDXS), name
        assert same(curve.x, OUTPUTS.plan[:, column]), name
        assert same(curve.y, OUTPUTS.plan[:, column + 1]), name
        assert same(curve.z, OUTPUTS.plan[:, column + 2]), name
    assert same(model.position.xStd, OUTPUTS.plan_stds[:, 0])
    assert same(model.position.yStd, OUTPUTS.plan_stds[:, 1])
    assert same(model.position.zStd, OUTPUTS.plan_stds[:, 2])
    assert len(model.velocity.xStd) == 0


def test_model_v2_lines(model_event: Any) -> None:
    model = model_event.modelV2
    for curves, points in (
        (model.laneLines, OUTPUTS.lane_lines),
        (model.roadEdges, OUTPUTS.road_edges),
    ):
        assert len(curves) == len(points)
        for curve, expected in zip(curves, points, strict=True):
            assert same(curve.x, X_IDXS)
            assert same(curve.y, expected[:, 0])
            assert same(curve.z, expected[:, 1])
            assert len(curve.t) == 0
    assert same(model.laneLineStds, OUTPUTS.lane_lines_stds[:, 0, 0])
    assert same(model.laneLineProbs, OUTPUTS.lane_lines_prob[[1, 3, 5, 7]])
    assert same(model.roadEdgeStds, OUTPUTS.road_edges_stds[:, 0, 0])


def test_model_v2_leads(model_event: Any) -> None:
    leads = model_event.modelV2.leadsV3
    assert [lead.probTime for lead in leads] == [0.0, 2.0, 4.0]
    for index, lead in enumerate(leads):
        assert lead.prob == OUTPUTS.lead_prob[index]
        assert list(lead.t) == [0, 2, 4, 6, 8, 10]
        for column, name in enumerate("xyva"):
            assert same(getattr(lead, name), OUTPUTS.lead[index, :, column]), name
            assert same(getattr(lead, f"{name}Std"), OUTPUTS.lead_stds[index, :, column]), name


def test_model_v2_meta(model_event: Any) -> None:
    meta, expected = model_event.modelV2.meta, OUTPUTS.meta
    assert meta.engagedProb == expected[0]
    assert same(meta.desireState, OUTPUTS.desire_state)
    assert same(meta.desirePrediction, OUTPUTS.desire_pred.reshape(-1))
    assert meta.hardBrakePredicted
    assert str(meta.laneChangeState) == "laneChangeStarting"
    assert str(meta.laneChangeDirection) == "right"
    disengage = meta.disengagePredictions
    assert list(disengage.t) == [2, 4, 6, 8, 10]
    assert same(disengage.gasDisengageProbs, expected[[1, 7, 13, 19, 25]])
    assert same(disengage.brakeDisengageProbs, expected[[2, 8, 14, 20, 26]])
    assert same(disengage.steerOverrideProbs, expected[[3, 9, 15, 21, 27]])
    assert same(disengage.brake3MetersPerSecondSquaredProbs, expected[[4, 10, 16, 22, 28]])
    assert same(disengage.brake4MetersPerSecondSquaredProbs, expected[[5, 11, 17, 23, 29]])
    assert same(disengage.brake5MetersPerSecondSquaredProbs, expected[[6, 12, 18, 24, 30]])
    assert same(disengage.gasPressProbs, expected[[31, 35, 39, 43, 47, 51]])
    assert same(disengage.brakePressProbs, expected[[32, 36, 40, 44, 48, 52]])


def test_model_v2_verdict(model_event: Any) -> None:
    model = model_event.modelV2
    assert str(model.confidence) == "yellow"
    assert model.action.desiredCurvature == pytest.approx(0.01)
    assert model.action.desiredAcceleration == -0.5
    assert model.action.shouldStop


def test_model_v2_raw_predictions() -> None:
    event = filled(
        "modelV2", lambda event: fill_model_v2(event, OUTPUTS, FRAME, VERDICT, b"\x01\x02\x03\x04")
    )
    assert event.modelV2.rawPredictions == b"\x01\x02\x03\x04"


def test_driving_model_data() -> None:
    event = filled(
        "drivingModelData",
        lambda event: fill_driving_model_data(event, OUTPUTS, FRAME, VERDICT),
    )
    data = event.drivingModelData
    assert event.valid
    assert (data.frameId, data.frameIdExtra, data.frameDropPerc) == (12, 13, 1.5)
    assert data.modelExecutionTime == pytest.approx(0.025)
    assert data.action.desiredAcceleration == -0.5
    assert str(data.meta.laneChangeState) == "laneChangeStarting"
    assert str(data.meta.laneChangeDirection) == "right"
    assert data.laneLineMeta.leftY == OUTPUTS.lane_lines[1, 0, 0]
    assert data.laneLineMeta.rightY == OUTPUTS.lane_lines[2, 0, 0]
    assert data.laneLineMeta.leftProb == OUTPUTS.lane_lines_prob[3]
    assert data.laneLineMeta.rightProb == OUTPUTS.lane_lines_prob[5]
    expected = path_coefficients(OUTPUTS.plan)
    assert same(data.path.xCoefficients, expected[0])
    assert same(data.path.yCoefficients, expected[1])
    assert same(data.path.zCoefficients, expected[2])


def with_meta(width: int) -> DrivingOutputs:
    return replace(OUTPUTS, meta=np.arange(width, dtype=np.float32))


@pytest.mark.parametrize(
    ("width", "gas", "brake5", "gas_press", "brake_press"),
    [
        (48, [1, 8, 15, 22, 29], [6, 13, 20, 27, 34], [], []),
        (53, [1, 9, 17, 25, 33], [6, 14, 22, 30, 38], [7, 15, 23, 31, 39], [8, 16, 24, 32, 40]),
        (55, [1, 7, 13, 19, 25], [6, 12, 18, 24, 30], [*range(31, 55, 4)], [*range(32, 55, 4)]),
    ],
)
def test_disengagements_of_the_three_layouts(
    width: int, gas: list[int], brake5: list[int], gas_press: list[int], brake_press: list[int]
) -> None:
    outputs = with_meta(width)
    event = filled("modelV2", lambda event: fill_model_v2(event, outputs, FRAME, VERDICT))
    found = event.modelV2.meta.disengagePredictions
    assert event.modelV2.meta.engagedProb == 0.0
    assert list(found.t) == [2, 4, 6, 8, 10]
    assert list(found.gasDisengageProbs) == gas
    assert list(found.brakeDisengageProbs) == [value + 1 for value in gas]
    assert list(found.steerOverrideProbs) == [value + 2 for value in gas]
    assert list(found.brake3MetersPerSecondSquaredProbs) == [value + 3 for value in gas]
    assert list(found.brake4MetersPerSecondSquaredProbs) == [value + 4 for value in gas]
    assert list(found.brake5MetersPerSecondSquaredProbs) == brake5
    assert list(found.gasPressProbs) == gas_press
    assert list(found.brakePressProbs) == brake_press


def test_temporal_pose_is_that_of_the_head_and_empty_without_it(model_event: Any) -> None:
    empty = model_event.modelV2.temporalPose
    names = ("trans", "rot", "transStd", "rotStd")
    assert [len(getattr(empty, name)) for name in names] == [0] * 4
    pose = np.arange(6, dtype=np.float32)
    outputs = replace(OUTPUTS, sim_pose=pose, sim_pose_stds=pose + 10)
    event = filled("modelV2", lambda event: fill_model_v2(event, outputs, FRAME, VERDICT))
    found = event.modelV2.temporalPose
    assert [list(getattr(found, name)) for name in names] == [
        [0, 1, 2],
        [3, 4, 5],
        [10, 11, 12],
        [13, 14, 15],
    ]


@pytest.mark.parametrize("big", [False, True])
def test_the_flag_of_the_large_model(big: bool) -> None:
    frame = replace(FRAME, big=big)
    model = filled("modelV2", lambda event: fill_model_v2(event, OUTPUTS, frame, VERDICT))
    data = filled(
        "drivingModelData", lambda event: fill_driving_model_data(event, OUTPUTS, frame, VERDICT)
    )
    assert model.modelV2.big is big
    assert data.drivingModelData.big is big


def test_path_coefficients_of_a_polynomial_are_its_own() -> None:
    plan = np.zeros((33, 15), np.float32)
    plan[:, 0] = 1 + 20 * T_IDXS - 0.5 * T_IDXS**2
    plan[:, 1] = 0.25 * T_IDXS
    plan[:, 2] = 0.001 * T_IDXS**4
    expected = [[1, 20, -0.5, 0, 0], [0, 0.25, 0, 0, 0], [0, 0, 0, 0, 0.001]]
    np.testing.assert_allclose(path_coefficients(plan), expected, atol=1e-4)


def test_path_coefficients_agree_with_polyfit() -> None:
    plan = np.random.default_rng(3).normal(size=(33, 15)).astype(np.float32)
    fit = np.polynomial.polynomial.polyfit(T_IDXS, plan[:, :3].astype(np.float64), 4)
    np.testing.assert_allclose(path_coefficients(plan), fit.T, rtol=1e-6, atol=1e-9)


def test_camera_odometry() -> None:
    event = filled("cameraOdometry", lambda event: fill_camera_odometry(event, OUTPUTS, FRAME))
    odometry = event.cameraOdometry
    assert event.valid
    assert (odometry.frameId, odometry.timestampEof) == (12, 987_654_321)
    assert same(odometry.trans, OUTPUTS.pose[:3])
    assert same(odometry.rot, OUTPUTS.pose[3:])
    assert same(odometry.transStd, OUTPUTS.pose_stds[:3])
    assert same(odometry.rotStd, OUTPUTS.pose_stds[3:])
    assert same(odometry.wideFromDeviceEuler, OUTPUTS.wide_from_device_euler)
    assert same(odometry.wideFromDeviceEulerStd, OUTPUTS.wide_from_device_euler_stds)
    assert same(odometry.roadTransformTrans, OUTPUTS.road_transform[:3])
    assert same(odometry.roadTransformTransStd, OUTPUTS.road_transform_stds[:3])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, True), ({"dropped": 1}, False), ({"valid": False}, False)],
)
def test_camera_odometry_is_valid_only_without_a_gap(
    changes: dict[str, Any], expected: bool
) -> None:
    frame = replace(FRAME, **changes)
    odometry = filled("cameraOdometry", lambda event: fill_camera_odometry(event, OUTPUTS, frame))
    model = filled("modelV2", lambda event: fill_model_v2(event, OUTPUTS, frame, VERDICT))
    assert odometry.valid is expected
    assert model.valid is frame.valid
