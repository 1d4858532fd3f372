"""The vector of the driver monitoring model becomes a message, in both layouts."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cereal.schema import new_event
from modeld.outputs.driver_state import (
    MonitoringFrame,
    MonitoringOutputs,
    MonitoringParser,
    fill_driver_state,
    nobody,
)
from runtime.errors import ArtifactError
from runtime.format.interfaces import parse_monitoring_interface
from tests.modeld.monitoring_program import METADATA_2025, METADATA_2026, metadata, slices_2026

# sigmoid(ln 3) = 3/4, sigmoid(ln 9) = 9/10, sigmoid(0) = 1/2; exp(ln 2) = 2.
LN2, LN3, LN9 = math.log(2), math.log(3), math.log(9)
FACE = (0.1, 0.2, 0.3, -0.5, 0.25, 0.75, 0.0, LN2, -LN2, LN3, 0.0, LN9)


def parse(metadata: dict[str, Any], raw: NDArray[np.float32]) -> MonitoringOutputs:
    parser = MonitoringParser(parse_monitoring_interface(metadata["interface"]))
    return parser.parse(raw.reshape(1, -1))


def vector_2025() -> NDArray[np.float32]:
    raw = np.zeros(596, np.float32)
    raw[0:12] = FACE
    raw[12] = LN9  # a face
    raw[21], raw[30] = LN3, -LN3  # eyes
    raw[31], raw[32] = -LN9, LN9  # blinks
    raw[33], raw[34] = 0.0, LN3  # sunglasses, occluded
    raw[35:39] = LN3, -LN3, LN9, -LN9  # ready
    raw[39:41] = -LN3, LN9  # not ready
    raw[41:44] = 1.0, 2.0, 3.0  # the right seat
    raw[41 + 12] = -LN9
    raw[41 + 39] = LN3
    raw[82], raw[83] = -LN3, LN9
    return raw


# Field of the message, head, values.
LEFT_2025 = (
    ("faceProb", "face_prob", [0.9]),
    ("leftEyeProb", "left_eye_prob", [0.75]),
    ("rightEyeProb", "right_eye_prob", [0.25]),
    ("leftBlinkProb", "left_blink_prob", [0.1]),
    ("rightBlinkProb", "right_blink_prob", [0.9]),
    ("sunglassesProb", "sunglasses_prob", [0.5]),
    ("occludedProb", "occluded_prob", [0.75]),
    ("readyProb", "ready_prob", [0.75, 0.25, 0.9, 0.1]),
    ("notReadyProb", "not_ready_prob", [0.25, 0.9]),
)


def test_slices_of_2026() -> None:
    where = slices_2026()
    raw = np.zeros(41, np.float32)
    start = where["face_descs_lhd"][0]
    assert start == 1 + 20  # after the wheel and the 20 values of the other seat
    raw[start : start + 12] = FACE
    raw[where["using_phone_prob_lhd"][0]] = LN3
    raw[where["sleep_prob_rhd"][0]] = -LN9
    raw[0] = LN3
    found = parse(METADATA_2026, raw)
    assert found.left.orientation == pytest.approx([0.1, 0.2, 0.3])
    assert found.left.position_stds == pytest.approx([3.0, 1.0, 9.0])
    assert found.left.probabilities["using_phone_prob"] == pytest.approx([0.75])
    assert found.right.probabilities["sleep_prob"] == pytest.approx([0.1])
    assert found.wheel_on_right == pytest.approx(0.75)
    assert found.poor_vision is None
    assert "occluded_prob" not in found.left.probabilities


@pytest.mark.parametrize(
    ("stds", "expected"), [("exp", [math.inf, math.exp(12.0)]), ("clipped", [math.exp(11.0)] * 2)]
)
def test_large_deviations_are_clipped_only_where_the_model_says(
    stds: str, expected: list[float]
) -> None:
    raw = np.zeros(41, np.float32)
    start = slices_2026()["face_descs_lhd"][0]
    raw[start + 6 : start + 8] = 100.0, 12.0
    found = parse(metadata(slices_2026(), 41, stds), raw)
    assert found.left.orientation_stds[:2] == pytest.approx(expected, rel=1e-6)


def filled(outputs: MonitoringOutputs, raw: bytes | None = None, *, valid: bool = True) -> Any:
    event = new_event("driverStateV2", mono_time_ns=1)
    frame = MonitoringFrame(frame_id=7, execution_time_s=0.5, program_time_s=0.25, valid=valid)
    fill_driver_state(event, outputs, frame, raw)
    assert event.valid is valid
    return event.driverStateV2


def test_the_message_of_2025() -> None:
    outputs = parse(METADATA_2025, vector_2025())
    # All but what the message has no room for.
    assert outputs.left.position[2] == pytest.approx(0.75)
    assert outputs.left.position_stds[2] == pytest.approx(9.0)
    assert outputs.left.probabilities.keys() == {head for _, head, _ in LEFT_2025}
    state = filled(outputs, b"\1\2\3\4")
    assert (state.frameId, state.modelExecutionTime, state.gpuExecutionTime) == (7, 0.5, 0.25)
    assert state.rawPredictions == b"\1\2\3\4"
    assert state.poorVisionProb == pytest.approx(0.25)
    assert state.wheelOnRightProb == pytest.approx(0.9)
    left = state.leftDriverData
    assert list(left.faceOrientation) == pytest.approx([0.1, 0.2, 0.3])
    assert list(left.faceOrientationStd) == pytest.approx([1.0, 2.0, 0.5])
    assert list(left.facePosition) == pytest.approx([-0.5, 0.25])
    assert list(left.facePositionStd) == pytest.approx([3.0, 1.0])
    for name, _, values in LEFT_2025:
        field = getattr(left, name)
        assert (list(field) if len(values) > 1 else [field]) == pytest.approx(values), name
    assert (left.phoneProb, left.sleepProb) == (0.0, 0.0)
    right = state.rightDriverData
    assert right.faceProb == pytest.approx(0.1)
    assert list(right.faceOrientation) == pytest.approx([1.0, 2.0, 3.0])
    assert list(right.notReadyProb) == pytest.approx([0.75, 0.5])
    filled(outputs, valid=False)


def test_the_message_of_2026_leaves_retired_fields_empty() -> None:
    state = filled(parse(METADATA_2026, np.full(41, LN3, np.float32)))
    left = state.leftDriverData
    assert (left.phoneProb, left.sleepProb) == pytest.approx((0.75, 0.75))
    assert (left.occludedProb, len(left.readyProb), len(left.notReadyProb)) == (0.0, 0, 0)
    assert (state.poorVisionProb, state.rawPredictions) == (0.0, b"")


def test_nobody_has_no_face() -> None:
    state = filled(nobody())
    for driver in (state.leftDriverData, state.rightDriverData):
        assert driver.faceProb == 0.0
        assert [len(driver.faceOrientation), len(driver.facePosition)] == [3, 2]
    assert state.wheelOnRightProb == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wheel_on_right": None}, "wheel_on_right: expected 1 value, is missing"),
        ({"face_descs_rhd": [0, 6]}, "face_descs_rhd: expected 12 values, found 6"),
        ({"sleep_prob_lhd": [3, 5]}, "sleep_prob_lhd: expected 1 value, found 2"),
        ({"face_prob_lhd": [40, 99]}, "expected \\[start, stop\\] within 0..41"),
    ],
)
def test_an_artifact_with_wrong_heads_is_refused(change: dict[str, Any], message: str) -> None:
    slices = {**slices_2026(), **change}
    wrong = metadata({n: b for n, b in slices.items() if b is not None}, 41, "exp")
    with pytest.raises(ArtifactError, match=message):
        parse_monitoring_interface(wrong["interface"])
