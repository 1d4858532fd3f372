"""The behaviour of a model over a drive: each quantity in each frame, read from its messages."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cereal.errors import MessageError
from cereal.schema import DAMAGED, member_name, read_event
from tools.behaviour.quantities import QUANTITIES
from tools.behaviour.truth import Floats, Truth


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a model wanted, frame by frame.

    Attributes:
        frame_ids: (n,) int64, in the order of the messages.
        valid: (n,) bool, as the messages say.
        values: (n, q) float64, a column for each of `QUANTITIES`; NaN where there is none.
    """

    frame_ids: NDArray[np.int64]
    valid: NDArray[np.bool_]
    values: Floats

    def of(self, name: str) -> Floats:
        """Return the (n,) values of a quantity."""
        return self.values[:, [quantity.name for quantity in QUANTITIES].index(name)]


class BehaviourReader:
    """Collects the behaviour while a log is read by somebody else.

    Args:
        speeds: the car's speed in m/s by frame id; None: what `carState` says before a frame.
            Without a speed, quantities that rest on it have no value.
    """

    def __init__(self, speeds: Mapping[int, float] | None = None) -> None:
        self._speeds = speeds
        self._speed = math.nan
        self._ids, self._valid = array("q"), array("b")
        self._values = array("d")

    def watch(self, events: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the bytes of each Event unchanged, and take note of it."""
        for data in events:
            self.add(data)
            yield data

    def add(self, data: bytes) -> None:
        """Take note of one Event; a damaged one is passed over."""
        try:
            self._add(read_event(data))
        except (MessageError, *DAMAGED):
            return

    def _add(self, event: Any) -> None:
        name = member_name(event)
        if name == "carState":
            self._speed = float(event.carState.vEgo)
        elif name == "modelV2":
            model, speed = event.modelV2, self._speed
            if self._speeds is not None:
                speed = self._speeds.get(model.frameId, math.nan)
            row = [quantity.of(model, speed) for quantity in QUANTITIES]
            frame_id, valid = int(model.frameId), bool(event.valid)
            self._ids.append(frame_id)
            self._valid.append(valid)
            self._values.extend(row)

    def behaviour(self) -> Behaviour:
        """Return what was seen so far."""
        return Behaviour(
            np.array(self._ids, np.int64),
            np.array(self._valid, np.bool_),
            np.array(self._values, np.float64).reshape(-1, len(QUANTITIES)),
        )


def behaviour_of(events: Iterable[bytes], speeds: Mapping[int, float] | None = None) -> Behaviour:
    """Return the behaviour that a log holds.

    Args:
        events: bytes of each Event, in the log's order.
        speeds: as in `BehaviourReader`.
    """
    reader = BehaviourReader(speeds)
    for data in events:
        reader.add(data)
    return reader.behaviour()


def true_behaviour(truth: Truth) -> Behaviour:
    """Return what a perfect model would have wanted; NaN where nobody knows."""
    unknown = np.full(truth.frame_id.size, np.nan)
    columns = [unknown if one.truth is None else one.truth(truth) for one in QUANTITIES]
    valid = np.ones(truth.frame_id.size, np.bool_)
    return Behaviour(truth.frame_id, valid, np.stack(columns, axis=1))
