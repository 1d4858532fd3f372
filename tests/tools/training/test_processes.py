"""Processes of a training: what they send arrives, and their end, wanted or not, is told."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tools.errors import TrainingError
from tools.training.processes import Crew, open_crew

Send = Callable[[Any], None]
Stopped = Callable[[], bool]


def count(first: int, last: int, _is_stopped: Stopped, send: Send) -> None:
    for value in range(first, last):
        send(value)


def fail(_number: int, _is_stopped: Stopped, _send: Send) -> None:
    raise ValueError("no such paint")


def wait(_number: int, is_stopped: Stopped, send: Send) -> None:
    send(os.getpid())
    while not is_stopped():
        time.sleep(0.01)


def everything(crew: Crew) -> list[Any]:
    found: list[Any] = []
    while crew.working:
        found += crew.receive(1.0)
    return found


def test_all_that_is_sent_arrives() -> None:
    with open_crew(count, [(0, 3), (10, 12)]) as crew:
        assert sorted(everything(crew)) == [0, 1, 2, 10, 11]
        assert crew.receive() == []


def test_failure_is_one_line() -> None:
    with (
        open_crew(fail, [(0,)]) as crew,
        pytest.raises(
            TrainingError, match=r"^train: a painting process failed: ValueError: no such"
        ),
    ):
        everything(crew)


def test_process_that_is_killed_is_told() -> None:
    with open_crew(wait, [(0,)]) as crew:
        (pid,) = crew.receive(60.0)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(TrainingError, match=r"found one gone; .* --resume"):
            everything(crew)


def test_processes_are_gone_after_the_block() -> None:
    with open_crew(wait, [(0,), (1,)]) as crew:
        pids: list[int] = []
        while len(pids) < 2:
            pids += crew.receive(60.0)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
