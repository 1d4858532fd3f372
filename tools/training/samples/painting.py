"""Fills a replay ring with painted samples, in processes of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tools.errors import TrainingError
from tools.lib import processes
from tools.lib.processes import Crew, Task
from tools.training.samples.replay import Replay, ReplayPlan, Sample

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


# --- Processes that paint or drive for a training until they are told to end ------------------
#
# A crew (`tools.lib.processes`) whose troubles are told in the training's words.

_GONE = (
    "train: expected the painting processes to go on, found one gone; is there enough memory? "
    "--workers 1 takes the least"
)


@contextmanager
def open_crew(task: Task, arguments: Sequence[tuple[Any, ...]]) -> Iterator[Crew]:
    """Start one process for each row of arguments; at the end of the block they are gone.

    What the crew raises where one failed or is gone is a TrainingError.

    Args:
        task: a function of a module, called with a row of arguments, `is_stopped` and `send`.
        arguments: of each process; what can be pickled.
    """
    with processes.open_crew(partial(_told, task), arguments, TrainingError(_GONE)) as found:
        yield found


def _told(task: Task, *arguments: Any) -> None:
    """Do a task; what it raises becomes one line."""
    try:
        task(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, in the training's words
        raise TrainingError(
            f"train: a painting process failed: {type(error).__name__}: {error}"
        ) from None
