"""Processes that paint or drive for a training until they are told to end.

A crew (`tools.lib.crew`) whose troubles are told in the training's words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tools.errors import TrainingError
from tools.lib import crew
from tools.lib.crew import Crew, Task

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
    with crew.open_crew(partial(_told, task), arguments, TrainingError(_GONE)) as found:
        yield found


def _told(task: Task, *arguments: Any) -> None:
    """Do a task; what it raises becomes one line."""
    try:
        task(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, in the training's words
        raise TrainingError(
            f"train: a painting process failed: {type(error).__name__}: {error}"
        ) from None
