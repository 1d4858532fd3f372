"""Camera states of thinned logs: the frames between those that were kept.

A qlog has every 20th state of a camera. Frames come at a steady rate, so that the ids and times of
those between are known to a millisecond; which of them the first picture of a file shows is told by
when the segment was begun.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

STATE: Final = np.dtype(
    [
        ("segment", np.int64),
        ("time_ns", np.int64),
        ("frame_id", np.int64),
        ("sof_ns", np.int64),
        ("eof_ns", np.int64),
    ]
)
"""A camera state: position of the segment whose log has it, logMonoTime, and its own fields."""

Rows = NDArray[np.void]

_PERIOD_NS: Final = 50_000_000


def interpolate_states(states: Rows, count: int, start_ns: int | None) -> Rows | None:
    """Return the states of the frames that a file's pictures show.

    `states`: (n,) of ``STATE``, of one camera in one log. `start_ns`: when the segment was begun,
    which is when its first picture came; None: its first picture is of the first state. The result
    is (count,) of ``STATE``, stamps and ids; None where there are no states, or all of them.
    """
    states = states[np.argsort(states["frame_id"], kind="stable")]
    ids = states["frame_id"]
    steps = np.diff(ids)
    if not count or not len(ids) or (steps.size and np.median(steps) <= 1):
        return None
    first = int(ids[0])
    # Thinning keeps the first state of the drive, and of each segment one of the first ones.
    every = int(np.median(steps)) if steps.size else count
    if start_ns is not None:
        ahead = round((start_ns - int(states["eof_ns"][0])) / _PERIOD_NS)
        first = max(0, first + min(0, max(ahead, -every)))
    found = np.zeros(count, STATE)
    found["frame_id"] = wanted = first + np.arange(count)
    for name in ("sof_ns", "eof_ns"):
        found[name] = _at(wanted, ids, states[name])
    return found


def _at(
    wanted: NDArray[np.int64], ids: NDArray[np.int64], times_ns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Interpolate times by frame id, in whole ns; outside go on at the usual rate."""
    base = int(times_ns[0])
    inside = np.interp(wanted, ids, (times_ns - base).astype(np.float64))
    outside = np.minimum(wanted - ids[0], 0) + np.maximum(wanted - ids[-1], 0)
    return np.asarray(base + np.rint(inside).astype(np.int64) + outside * _PERIOD_NS)
