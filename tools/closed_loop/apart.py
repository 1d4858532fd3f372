"""Drives in processes of this machine, beside each other; what comes of it does not depend on that.

A process loads the program once and drives one errand after the other. One that fails or dies ends
the run with one line; drives that were over before have been told of.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, NamedTuple

from cereal.errors import CerealError
from modeld.errors import ModeldError
from runtime.errors import RuntimeFault
from tools.closed_loop.faults import FAULTS
from tools.closed_loop.result import Drive
from tools.closed_loop.run import DaemonDrivers, Errand, OnDrive, drive_one
from tools.closed_loop.simulation import End, Track
from tools.errors import ToolError
from tools.playback.model import load_model

_END_S: Final = 10.0
THREADS_VARIABLE: Final = "POCL_MAX_PTHREAD_COUNT"
_SPAWN: Final = multiprocessing.get_context("spawn")
_FAILURES: Final = (ToolError, ModeldError, CerealError, RuntimeFault)


class _Failed(NamedTuple):
    """What ended a process, in one line."""

    text: str


class _Driven(NamedTuple):
    """A drive without its trial, which is made anew from the errand."""

    samples: Any
    end: str
    frames: int
    answered: int
    wall_s: float


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    position: int | None = None


def drive_apart(
    errands: Sequence[Errand],
    model: Path,
    device: str | None,
    workers: int,
    on_drive: OnDrive | None = None,
) -> tuple[list[Drive], str]:
    """Drive in several processes.

    Args:
        errands: what is driven.
        model: driving artifact.
        device: OpenCL device; None: the best.
        workers: how many processes.
        on_drive: called after each drive, in the order in which they end.

    Returns:
        The drives in the order of the errands, and the name of the device.

    Raises:
        ToolError: a process failed, or is gone.
    """
    waiting = deque(range(len(errands)))
    drives: dict[int, Drive] = {}
    name = ""
    with _crew(min(workers, len(errands)), model, device) as crew:
        by_pipe = {worker.pipe: worker for worker in crew}
        while len(drives) < len(errands):
            for ready in wait(list(by_pipe)):
                assert isinstance(ready, Connection)
                worker = by_pipe[ready]
                message = _received(worker)
                if isinstance(message, str):
                    name = message
                else:
                    assert worker.position is not None
                    drive = _whole(errands[worker.position], message)
                    drives[worker.position] = drive
                    if on_drive is not None:
                        on_drive(drive)
                _give(worker, errands, waiting)
    return [drives[position] for position in range(len(errands))], name


def _give(worker: _Worker, errands: Sequence[Errand], waiting: deque[int]) -> None:
    worker.position = waiting.popleft() if waiting else None
    if worker.position is not None:
        worker.pipe.send(errands[worker.position])


def _received(worker: _Worker) -> Any:
    """Return what a process sent.

    Raises:
        ToolError: it failed, or is gone.
    """
    try:
        message = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(_END_S)
        raise ToolError(
            "--workers: expected the driving processes to go on, found one that ended with exit "
            f"code {worker.process.exitcode}; is there enough memory? Try --workers 1"
        ) from None
    if isinstance(message, _Failed):
        raise ToolError(message.text)
    return message


def _whole(errand: Errand, driven: _Driven) -> Drive:
    track = Track(errand.trial(), driven.samples, End(driven.end))
    return Drive(track, driven.frames, driven.answered, driven.wall_s, errand.fault or "")


@contextmanager
def _crew(count: int, model: Path, device: str | None) -> Iterator[list[_Worker]]:
    """Yield processes at work; they are gone at the end of the block."""
    # The threads of a program wait for each other busily: all together get no more than there are.
    threads = max(1, len(os.sched_getaffinity(0)) // count)
    crew: list[_Worker] = []
    # A Ctrl-C reaches all processes of a terminal; this one ends the others. Without the tracker
    # running before, the first process would start it with the signal blocked.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for _ in range(count):
            ours, theirs = _SPAWN.Pipe()
            arguments = (theirs, model, device, threads, logging.getLogger().level)
            process = _SPAWN.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            crew.append(_Worker(process, ours))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        yield crew
    finally:
        for worker in crew:
            worker.pipe.close()
            worker.process.terminate()
        for worker in crew:
            worker.process.join(_END_S)


def _serve(pipe: Connection, model: Path, device: str | None, threads: int, level: int) -> None:
    """Drive what comes through the pipe: a process's only function."""
    # Read when the driver opens its devices, which is later than this.
    os.environ.setdefault(THREADS_VARIABLE, str(threads))
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(levelname).1s %(name)s: %(message)s"
    )
    threading.Thread(target=_follow_parent, name="follow parent", daemon=True).start()
    try:
        with load_model(model, device) as loaded:
            pipe.send(loaded.device)
            while True:
                errand: Errand = pipe.recv()
                fault = None if errand.fault is None else FAULTS[errand.fault]
                done = drive_one(errand.trial(), DaemonDrivers(loaded.program, fault))
                track = done.track
                pipe.send(
                    _Driven(track.samples, track.end, done.frames, done.answered, done.wall_s)
                )
    except EOFError:
        return
    except _FAILURES as error:
        pipe.send(_Failed(str(error)))


def _follow_parent() -> None:
    """End this process when the one that started it is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
