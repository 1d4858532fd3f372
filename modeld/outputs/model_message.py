"""Writes ``modelV2`` as bytes, frame after frame, from the arrays of one parser.

Setting 1200 numbers one by one takes eight times as long. The lists of one parser never change
their lengths, so each number has its place in the bytes. Where, is found out once, by a message
whose outputs are numbers that stand for themselves:

    outputs 0 1 2 ...  -> fill_outputs -> bytes ... 17 ... 3 ...    place -> number
    each frame: fill_frame -> bytes, then bytes[places] = outputs[numbers]
"""

from dataclasses import fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cereal.schema import content, new_event, read_event
from modeld.errors import InternalError
from modeld.outputs.fill_message import (
    FrameInfo,
    FrameVerdict,
    fill_frame,
    fill_model_v2,
    fill_outputs,
)
from modeld.outputs.parse_outputs import DrivingOutputs

# Stand-ins are whole numbers from here on: float32 holds them exactly below 2^24, and no constant
# of the message (times to 10 s, distances to 192 m) is among them.
_FIRST: Final = 1 << 22


class ModelMessage:
    """The ``modelV2`` of one parser's outputs, which it rewrites in place; without mixtures.

    Raises InternalError if `fill_outputs` computes a number, instead of copying one.
    """

    def __init__(self, outputs: DrivingOutputs) -> None:
        arrays = {
            one.name: array
            for one in fields(outputs)
            if isinstance(array := getattr(outputs, one.name), np.ndarray)
        }
        self._outputs = outputs
        # Views show later writes of the parser.
        self._named = arrays
        self._parts = [array.reshape(-1) for array in arrays.values()]
        self._numbers: NDArray[np.float32] = np.concatenate(self._parts)
        self._event = new_event("modelV2", mono_time_ns=0)
        stand_ins: dict[str, Any] = {}
        first = _FIRST
        for name, array in arrays.items():
            numbers = np.arange(first, first + array.size, dtype=np.float32)
            stand_ins[name] = numbers.reshape(array.shape)
            first += array.size
        fill_outputs(self._event, replace(outputs, **stand_ins))
        words = _words_of(self._event)
        self._places = np.flatnonzero((words >= _FIRST) & (words < first))
        self._sources = words[self._places].astype(np.intp) - _FIRST
        for sign in (1, -1):
            self._check(sign)

    def _check(self, sign: int) -> None:
        """Fill a message of known numbers in both ways, and compare them.

        Their `sign` reveals a number that is only compared with a bound.
        """
        numbers = self._numbers.size
        known = (sign * np.linspace(0.1, 0.9, numbers) ** 2).astype(np.float32)
        words = _words_of(self._event)
        words[self._places] = known[self._sources]
        event, first = new_event("modelV2", mono_time_ns=0), 0
        arrays: dict[str, Any] = {}
        for name, array in self._named.items():
            arrays[name] = known[first : first + array.size].reshape(array.shape)
            first += array.size
        fill_outputs(event, replace(self._outputs, **arrays))
        both = (words.tobytes(), _words_of(event).tobytes())
        if both[0] == both[1]:
            return
        found, wanted = (content(read_event(data)).to_dict() for data in both)
        names = [name for name, value in wanted.items() if found.get(name) != value]
        raise InternalError(
            f"modelV2: {', '.join(names)}: expected copies of single outputs, found what "
            "fill_outputs computes of them; compute it in fill_frame, this is a defect of modeld"
        )

    def fill(
        self,
        mono_time_ns: int,
        frame: FrameInfo,
        verdict: FrameVerdict,
        raw_predictions: bytes | None = None,
    ) -> bytes:
        """Return the Event of the present outputs.

        `raw_predictions` are all raw vectors as float32 bytes, for debugging: filled one by one.
        """
        if raw_predictions is not None:
            event = new_event("modelV2", mono_time_ns=mono_time_ns)
            fill_model_v2(event, self._outputs, frame, verdict, raw_predictions)
            return bytes(event.to_bytes())
        event = self._event
        event.logMonoTime = mono_time_ns
        fill_frame(event, frame, verdict)
        np.concatenate(self._parts, out=self._numbers)
        words = _words_of(event)
        words[self._places] = self._numbers[self._sources]
        return words.tobytes()


def _words_of(event: Any) -> NDArray[np.float32]:
    """Return a copy of an event's bytes; Cap'n Proto's numbers are little-endian everywhere."""
    # The library warns where a message is written twice, which is what we are here for.
    event.clear_write_flag()
    return np.frombuffer(event.to_bytes(), "<f4").copy()
