"""Drives in processes of this machine, beside each other; what comes of it does not depend on that.

A process loads the program once and drives one errand after the other. One that fails or dies ends
the run with one line; drives that were over before have been told of.
"""

from __future__ import annotations

import logging
import multiprocessing
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cereal.errors import CerealError
from modeld.errors import ModeldError
from runtime.errors import RuntimeFault
from tools.closed_loop.faults import FAULTS
from tools.closed_loop.result import Drive, OnDrive
from tools.closed_loop.run import DaemonDrivers, Errand, drive_one
from tools.closed_loop.simulation import End, Track
from tools.errors import ToolError
from tools.lib.crew import IsStopped, Send, open_crew
from tools.lib.processes import limit_threads, threads_of_one
from tools.playback.model import load_model


class _Driven(NamedTuple):
    """A drive without its trial, which is made anew from the errand.

    Attributes:
        position: of its errand.
        samples: of its track.
        end: of its track.
        frames: that the cameras exposed.
        answered: of these.
        wall_s: how long it took.
    """

    position: int
    samples: Any
    end: str
    frames: int
    answered: int
    wall_s: float


@dataclass(frozen=True, slots=True)
class _Plan:
    """What all processes know.

    Attributes:
        errands: what is driven.
        model: driving artifact.
        device: OpenCL device; None: the best.
        threads: of its driver.
        level: of their logs.
    """

    errands: tuple[Errand, ...]
    model: Path
    device: str | None
    threads: int
    level: int


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
    count = min(workers, len(errands))
    level = logging.getLogger().level
    plan = _Plan(tuple(errands), model, device, threads_of_one(count), level)
    # Whoever is done takes the next errand.
    taken = multiprocessing.get_context("spawn").Value("q", 0)
    gone = ToolError(
        "--workers: expected the driving processes to go on, found one that is gone; is there "
        "enough memory? Try --workers 1"
    )
    drives: dict[int, Drive] = {}
    name = ""
    with open_crew(_drive, [(plan, taken)] * count, gone) as crew:
        while len(drives) < len(errands):
            for message in crew.receive(1.0):
                if isinstance(message, str):
                    name = message
                    continue
                drive = _whole(errands[message.position], message)
                drives[message.position] = drive
                if on_drive is not None:
                    on_drive(drive)
    return [drives[position] for position in range(len(errands))], name


def _whole(errand: Errand, driven: _Driven) -> Drive:
    track = Track(errand.trial(), driven.samples, End(driven.end))
    return Drive(track, driven.frames, driven.answered, driven.wall_s, errand.fault or "")


def _drive(plan: _Plan, taken: Any, is_stopped: IsStopped, send: Send) -> None:
    """Drive errands as long as there are any; the body of a process.

    Raises:
        ToolError: something failed; its line, as not every error can be sent as it is.
    """
    limit_threads(plan.threads)
    logging.basicConfig(
        level=plan.level, stream=sys.stderr, format="%(levelname).1s %(name)s: %(message)s"
    )
    try:
        with load_model(plan.model, plan.device) as loaded:
            send(loaded.device)
            while not is_stopped() and (position := _next(taken)) < len(plan.errands):
                errand = plan.errands[position]
                fault = None if errand.fault is None else FAULTS[errand.fault]
                done = drive_one(errand.trial(), DaemonDrivers(loaded.program, fault))
                track = done.track
                send(
                    _Driven(
                        position, track.samples, track.end, done.frames, done.answered, done.wall_s
                    )
                )
    except (ToolError, ModeldError, CerealError, RuntimeFault) as error:
        raise ToolError(str(error)) from None


def _next(taken: Any) -> int:
    with taken.get_lock():
        taken.value += 1
        return int(taken.value) - 1
