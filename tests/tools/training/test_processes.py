"""Processes of a training: their troubles are one line that says how to go on."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tools.errors import TrainingError
from tools.lib.crew import IsStopped, Send
from tools.training.processes import open_crew


def fail(_number: int, _is_stopped: IsStopped, _send: Send) -> None:
    raise ValueError("no such paint")


def wait(_number: int, is_stopped: IsStopped, send: Send) -> None:
    send(os.getpid())
    while not is_stopped():
        time.sleep(0.01)


def test_failure_is_one_line() -> None:
    with (
        open_crew(fail, [(0,)]) as crew,
        pytest.raises(
            TrainingError, match=r"^train: a painting process failed: ValueError: no such paint$"
        ),
    ):
        crew.receive(60.0)


def test_process_that_is_killed_is_told() -> None:
    with open_crew(wait, [(0,)]) as crew:
        (pid,) = crew.receive(60.0)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(TrainingError, match=r"found one gone; is there enough memory"):
            crew.receive(60.0)
