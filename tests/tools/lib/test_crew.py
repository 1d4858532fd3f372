"""Crews of processes: what they send arrives, and their end, wanted or not, is told."""

import os
import signal
import time
from typing import Any

import pytest

from tools.errors import ToolError
from tools.lib import processes as crew_module
from tools.lib.processes import Crew, IsStopped, Send, interrupts_later, open_crew

GONE = ToolError("test: one is gone")


def count(first: int, last: int, _is_stopped: IsStopped, send: Send) -> None:
    for value in range(first, last):
        send(value)


def fail(number: int, _is_stopped: IsStopped, _send: Send) -> None:
    raise OSError(number, "no such paint")


def wait(_number: int, is_stopped: IsStopped, send: Send) -> None:
    while not is_stopped():
        send(os.getpid())
        time.sleep(0.01)


def everything(crew: Crew) -> list[Any]:
    found: list[Any] = []
    while crew.working:
        found += crew.receive(1.0)
    return found


def test_all_that_is_sent_arrives() -> None:
    with open_crew(count, [(0, 3), (10, 12)], GONE) as crew:
        assert sorted(everything(crew)) == [0, 1, 2, 10, 11]
        assert crew.receive() == []


def test_what_a_task_raises_is_raised_here() -> None:
    with open_crew(fail, [(28,)], GONE) as crew, pytest.raises(OSError, match="paint") as caught:
        everything(crew)
    assert caught.value.errno == 28


def test_process_that_is_killed_is_told() -> None:
    with open_crew(wait, [(0,)], GONE) as crew:
        (pid,) = crew.receive(60.0)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ToolError, match="one is gone"):
            everything(crew)


def test_processes_are_gone_after_the_block() -> None:
    pids: set[int] = set()
    with open_crew(wait, [(0,), (1,)], GONE) as crew:
        while len(pids) < 2:
            pids.update(crew.receive(60.0))
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_processes_do_not_hear_of_an_interrupt() -> None:
    with open_crew(wait, [(0,)], GONE) as crew:
        (pid,) = crew.receive(60.0)
        os.kill(pid, signal.SIGINT)
        for _ in range(20):
            assert crew.receive(60.0) == [pid]


def test_an_interrupt_of_the_parent_comes_after_the_block() -> None:
    held: set[int] = set()
    with pytest.raises(KeyboardInterrupt), interrupts_later():  # noqa: PT012 - from within
        signal.raise_signal(signal.SIGINT)
        held |= signal.sigpending()
    assert held == {signal.SIGINT}


def test_a_process_that_was_stopped_is_gone_after_the_block_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew_module, "STOP_TIMEOUT_S", 0.2)
    with open_crew(wait, [(0,)], GONE) as crew:
        (pid,) = crew.receive(60.0)
        # It hears of SIGTERM when it goes on, which it never does.
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
