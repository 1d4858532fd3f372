"""Judges how evenly a live daemon answered: every frame once, in the rhythm of the recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.playback.outcome import FrameTable
from tools.playback.player.live_listener import Answer
from tools.playback.player.player import Played

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Jitter:
    """What was heard of the frames that were played."""

    table: FrameTable  # one row for each frame played
    # (n,) int64 ids of frames without a modelV2, but for frames that follow frames missing in the
    # recording, for which a model may have none, as in the car.
    unanswered: NDArray[np.int64]
    repeated: NDArray[np.int64]  # (n,) int64 ids of frames with more than one
    # (n,) distance between the interval in which two modelV2 arrived and the recorded interval of
    # their frames at the speed of playing; frames that follow each other only, and not the first,
    # which is offered until it is answered.
    deviation_ms: Floats
    latency_ms: Floats  # (n,) from handing over a frame to the arrival of its modelV2
    drop_percent: float  # largest ``frameDropPerc``


def judge(played: Sequence[Played], answers: Sequence[Answer], speed: float) -> Jitter:
    """Compare what was played with what was heard.

    `played`: frames of the main camera in order; ids are distinct. `answers`: in order of arrival.
    `speed`: seconds of the drive per second.
    """
    counts = Counter(one.frame_id for one in answers)
    first: dict[int, Answer] = {}
    for one in answers:
        first.setdefault(one.frame_id, one)
    found = [first.get(one.frame_id) for one in played]
    deviation, latency = [], []
    for index in range(1, len(played)):
        now, before = played[index], played[index - 1]
        answer, previous = found[index], found[index - 1]
        if answer is None:
            continue
        latency.append(answer.arrived_ns - now.clock_ns)
        if previous is not None and now.continues and before.continues:
            recorded_ns = (now.eof_ns - before.eof_ns) / speed
            deviation.append(abs(answer.arrived_ns - previous.arrived_ns - recorded_ns))
    ids = np.array([one.frame_id for one in played], np.int64)
    table = _table(played, found, ids)
    return Jitter(
        table=table,
        unanswered=ids[~table.published & (table.dropped == 0)],
        repeated=np.array([one for one in ids if counts[int(one)] > 1], np.int64),
        deviation_ms=np.array(deviation, np.float64) / 1e6,
        latency_ms=np.array(latency, np.float64) / 1e6,
        drop_percent=max((one.drop_percent for one in answers), default=0.0),
    )


def _table(
    played: Sequence[Played], found: Sequence[Answer | None], ids: NDArray[np.int64]
) -> FrameTable:
    dropped = np.zeros(ids.size, np.int64)
    if ids.size:
        dropped[1:] = np.maximum(0, np.diff(ids) - 1)
    return FrameTable(
        moment=np.array([one.moment for one in played], np.int64),
        frame_id=ids,
        dropped=dropped,
        published=np.array([one is not None for one in found], np.bool_),
        valid=np.array([one is not None and one.valid for one in found], np.bool_),
        execution_s=np.array([0.0 if one is None else one.execution_s for one in found]),
        input_crc={},
    )
