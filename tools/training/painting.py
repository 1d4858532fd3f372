"""Fills a replay ring with painted samples, in processes of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tools.training.replay import Replay, ReplayPlan, Sample

# Painters wait while there is enough. What they have begun meanwhile must not hold learning up.
_NICE = 19
# Between two looks whether it is the painters' turn.
_WAIT_S = 0.01

Source = Callable[[int], Iterable[Sample]]
"""Gives the samples of a world by its number; what can be pickled."""


@dataclass(frozen=True, slots=True)
class PaintingPlan:
    """What the painters do.

    Attributes:
        replay: where samples go.
        source: where they come from.
        first: number of the first world.
    """

    replay: ReplayPlan
    source: Source
    first: int = 0


def fill(
    plan: PaintingPlan,
    painter: int,
    is_stopped: Callable[[], bool],
    send: Callable[[Any], None],
) -> None:
    """Paint until told to stop, and wait while there is enough; the body of a process.

    Args:
        plan: what.
        painter: number of this process; it paints each so-manieth world.
        is_stopped: whether to end.
        send: takes the number of each world that is done.
    """
    os.nice(_NICE)
    replay = Replay(plan.replay)
    number = plan.first + painter
    while not is_stopped():
        for sample in plan.source(number):
            replay.put(painter, sample)
            while replay.is_enough and not is_stopped():
                time.sleep(_WAIT_S)
            if is_stopped():
                return
        send(number)
        number += plan.replay.painters
