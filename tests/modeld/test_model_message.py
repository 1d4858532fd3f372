"""The bytes of modelV2 that are patched, against those of a message that is filled anew."""

from __future__ import annotations

import warnings
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from cereal.schema import new_event
from modeld.fill_message import FrameInfo, FrameVerdict, fill_model_v2
from modeld.model_message import ModelMessage
from modeld.parse_outputs import DrivingOutputs
from tests.modeld.test_fill_message import FRAME, VERDICT, make_outputs


def _filled(
    outputs: DrivingOutputs, frame: FrameInfo, verdict: FrameVerdict, raw: bytes | None = None
) -> bytes:
    event = new_event("modelV2", mono_time_ns=77)
    fill_model_v2(event, outputs, frame, verdict, raw)
    return bytes(event.to_bytes())


def _rewrite(outputs: DrivingOutputs, rng: np.random.Generator) -> None:
    """Write other numbers into the arrays, as a parser does."""
    for one in fields(outputs):
        array = getattr(outputs, one.name)
        if isinstance(array, np.ndarray):
            array[...] = rng.normal(0.0, 100.0, array.shape)


def _variants() -> dict[str, DrivingOutputs]:
    plain = make_outputs()
    pose, pose_stds = np.zeros((2, 6), np.float32)
    return {
        "meta55": plain,
        "meta48": replace(plain, meta=np.zeros(48, np.float32)),
        "meta53": replace(plain, meta=np.zeros(53, np.float32)),
        "pose of a simulation": replace(plain, sim_pose=pose, sim_pose_stds=pose_stds),
        "action": replace(plain, action=np.zeros(2, np.float32)),
        "slices of a vector": replace(plain, plan=np.zeros(2000, np.float32)[:495].reshape(33, 15)),
    }


@pytest.mark.parametrize("name", list(_variants()))
def test_each_frame_is_what_a_message_filled_anew_is(name: str) -> None:
    outputs = _variants()[name]
    message = ModelMessage(outputs)
    rng = np.random.default_rng(3)
    for number in range(50):
        _rewrite(outputs, rng)
        frame = replace(FRAME, frame_id=number, valid=bool(number % 3), dropped=number)
        action = replace(VERDICT.action, curvature_1pm=float(rng.normal()), should_stop=False)
        verdict = replace(VERDICT, action=action, hard_brake_predicted=bool(number % 2))
        assert message.fill(77, frame, verdict) == _filled(outputs, frame, verdict)


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -0.0, 1e-42, 2.0**22 + 5])
def test_numbers_pass_as_bits(value: float) -> None:
    outputs = make_outputs()
    message = ModelMessage(outputs)
    outputs.plan[7, 2] = outputs.lead[2, 5, 3] = outputs.meta[0] = value
    assert message.fill(77, FRAME, VERDICT) == _filled(outputs, FRAME, VERDICT)


def test_raw_vectors_come_along() -> None:
    outputs = make_outputs()
    message = ModelMessage(outputs)
    first = message.fill(77, FRAME, VERDICT)
    raw = b"\x01\x02\x03\x04"
    assert message.fill(77, FRAME, VERDICT, raw) == _filled(outputs, FRAME, VERDICT, raw)
    assert message.fill(77, FRAME, VERDICT) == first


def test_nothing_grows_and_nothing_warns() -> None:
    message = ModelMessage(make_outputs())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sizes = {len(message.fill(number, FRAME, VERDICT)) for number in range(200)}
    assert len(sizes) == 1


def test_a_number_that_outputs_do_not_have_stays_as_it_is_filled() -> None:
    """Fields of the frame are never taken for outputs, whatever their bits."""
    outputs = make_outputs()
    message = ModelMessage(outputs)
    bits: Any = np.float32(2.0**22 + 3).view(np.uint32)
    frame = replace(FRAME, frame_id=int(bits), execution_time_s=2.0**22 + 3)
    assert message.fill(77, frame, VERDICT) == _filled(outputs, frame, VERDICT)
