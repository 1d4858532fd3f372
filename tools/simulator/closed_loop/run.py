"""Drives trials, by the expert or by the daemon's own code, in this process or several; gates.

A driver is asked once a frame. Its answer takes effect `ANSWER_S` later, as on a device.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from cereal.errors import CerealError
from modeld.errors import ModeldError
from modeld.model.driving_model import DrivingProgram
from modeld.outputs.verdict import Action
from modeld.vehicle.cameras import DeviceCameras
from runtime.errors import RuntimeFault
from tools.behaviour.drive_result import numbers_of
from tools.behaviour.gates import Gate, GateVerdict, judge
from tools.errors import ToolError, UsageError
from tools.lib.processes import IsStopped, Send, limit_threads, open_crew, threads_of_one
from tools.playback.model import load_model
from tools.simulator.closed_loop.daemon_driver import (
    FRAME_NS,
    START_NS,
    DaemonDriver,
    Disturbance,
    Wire,
    ignore,
)
from tools.simulator.closed_loop.device import cropped_cameras
from tools.simulator.closed_loop.faults import FAULTS, Fault
from tools.simulator.closed_loop.result import Drive, OnDrive, Outcome, figures_of
from tools.simulator.closed_loop.simulation import TICKS_PER_FRAME, End, Simulation, Track
from tools.simulator.closed_loop.trial import SCENARIOS, STANDARD, Scenario, Trial, make_trial
from tools.simulator.world.car import TICK_S
from tools.simulator.world.expert import Expert, command

# From the moment that a picture shows to that in which its answer reaches the car: warp, model,
# bus. A device takes 30 to 50 ms.
ANSWER_TICKS = 4
ANSWER_S = ANSWER_TICKS * TICK_S


class Driver(Protocol):
    """The driver of a simulated car."""

    answered: int
    """Frames so far to which there was a valid answer."""

    def tick(self) -> None:
        """See what the car does; called every 10 ms, also at the beginning."""

    def answer(self) -> Action | None:
        """Return the command for a frame; None keeps the last one."""

    def close(self) -> None:
        """End the drive."""


def drive(simulation: Simulation, driver: Driver) -> Track:
    """Drive a simulation from its beginning to its end."""
    driver.tick()
    while simulation.end is None:
        action = driver.answer()
        for tick in range(TICKS_PER_FRAME):
            if tick == ANSWER_TICKS and action is not None:
                simulation.action = action
            simulation.tick()
            driver.tick()
    return simulation.track


class ExpertDriver:
    """The expert of the world: knows the road, sees every car, and drives the same car."""

    def __init__(self, simulation: Simulation) -> None:
        trial = simulation.trial
        self.answered = 0
        self._simulation = simulation
        self._lane = trial.lane
        self._expert = Expert(trial.world, trial.lane, simulation.set_speed_mps)

    def tick(self) -> None:
        """Know everything already."""

    def answer(self) -> Action | None:
        """Plan, and read the command from the plan as the daemon does."""
        simulation = self._simulation
        if simulation.lane != self._lane:
            self._expert.change_lane(simulation.lane - self._lane, simulation.time_s)
            self._lane = simulation.lane
        plan = self._expert.plan(simulation.body, simulation.vehicles)
        wanted = command(plan, simulation.car.model.lateral_delay_s + ANSWER_S)
        self.answered += 1
        return Action(wanted.curvature_1pm, wanted.acceleration_mps2)

    def close(self) -> None:
        """Hold nothing."""


# Between two drives of one log.
BETWEEN_NS = 1_000_000_000
MakeDriver = Callable[[Simulation], Driver]


@dataclass(frozen=True, slots=True)
class Errand:
    """One drive in words for another process; None: the scenario's length, no fault."""

    scenario: str
    seed: int
    length_m: float | None = None
    fault: str | None = None

    def trial(self) -> Trial:
        """Make the drive."""
        return make_trial(SCENARIOS[self.scenario], self.seed, self.length_m)


@dataclass(frozen=True, slots=True)
class Selection:
    """`drives` of each scenario, from `seed` on; None: the scenario's length."""

    scenarios: tuple[Scenario, ...] = (STANDARD,)
    seed: int = 0
    drives: int = 1
    length_m: float | None = None

    def errands(self, fault: str | None = None) -> list[Errand]:
        """Return the drives, each with a fault if there is one."""
        return [
            Errand(scenario.name, seed, self.length_m, fault)
            for scenario in self.scenarios
            for seed in range(self.seed, self.seed + self.drives)
        ]

    def trials(self) -> Iterable[Trial]:
        """Make the drives one by one: a road takes some memory."""
        return (errand.trial() for errand in self.errands())


def scenarios_named(names: Iterable[str]) -> tuple[Scenario, ...]:
    """Return scenarios by their names; ``all`` are all, none is the standard.

    Raises:
        UsageError: there is no such scenario.
    """
    wanted = list(dict.fromkeys(names))
    if "all" in wanted:
        return tuple(SCENARIOS.values())
    unknown = [name for name in wanted if name not in SCENARIOS]
    if unknown:
        raise UsageError(
            f"--scenario {unknown[0]}: expected one of {', '.join(SCENARIOS)} or all, found "
            "another name"
        )
    return tuple(SCENARIOS[name] for name in wanted) or (STANDARD,)


def drive_all(
    selection: Selection, make_driver: MakeDriver, on_drive: OnDrive | None = None
) -> list[Drive]:
    """Drive a selection, with a new driver for each drive; call `on_drive` after each."""
    drives = []
    for trial in selection.trials():
        drives.append(drive_one(trial, make_driver))
        if on_drive is not None:
            on_drive(drives[-1])
    return drives


def drive_one(trial: Trial, make_driver: MakeDriver) -> Drive:
    """Drive one trial."""
    start_s = time.perf_counter()
    simulation = Simulation(trial)
    driver = make_driver(simulation)
    try:
        track = drive(simulation, driver)
    finally:
        driver.close()
    wall_s = time.perf_counter() - start_s
    return Drive(track, simulation.frame, driver.answered, wall_s)


def expert_drives(selection: Selection, on_drive: OnDrive | None = None) -> list[Drive]:
    """Let the expert drive, whatever the model."""
    return drive_all(selection, ExpertDriver, on_drive)


@dataclass(slots=True)
class DaemonDrivers:
    """Makes drivers that share a program; their logs follow each other in time.

    `record` takes the bytes of every event; `fault` is planted into each drive.
    """

    program: DrivingProgram
    fault: Fault | None = None
    record: Callable[[bytes], None] = ignore
    cameras: DeviceCameras = field(default_factory=cropped_cameras)
    _last: Simulation | None = None
    _start_ns: int = START_NS

    def __call__(self, simulation: Simulation) -> DaemonDriver:
        """Return the driver of a drive."""
        if self._last is not None:
            self._start_ns += self._last.frame * FRAME_NS + BETWEEN_NS
        self._last = simulation
        disturbance = Disturbance() if self.fault is None else self.fault.plant()
        wire = Wire(self.record, self._start_ns, disturbance, self.cameras)
        return DaemonDriver(simulation, self.program, wire)


# --- Drives in several processes, with the same results ---------------------------------------
#
# A process loads the program once and drives one errand after the other. If it fails or dies, the
# run ends with one line; drives that ended before were reported.


class _Driven(NamedTuple):
    """A drive without its trial, which is made again from the errand.

    Attributes:
        position: the position of its errand.
        samples, end: those of its track.
        frames: frames that the cameras exposed.
        answered: frames with a valid answer.
        wall_s: duration of the drive.
    """

    position: int
    samples: Any
    end: str
    frames: int
    answered: int
    wall_s: float


@dataclass(frozen=True, slots=True)
class _Plan:
    """The plan, which all processes have.

    Attributes:
        errands: all drives.
        model: the driving artifact.
        device: the OpenCL device; None selects the best.
        threads: threads of its driver.
        level: the level of their logs.
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
        errands: the drives.
        model: the driving artifact.
        device: the OpenCL device; None selects the best.
        workers: the number of processes.
        on_drive: called after each drive, in the order in which they end.

    Returns:
        The drives in the order of the errands, and the name of the device.

    Raises:
        ToolError: a process failed or died.
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


# --- Gates on the figures of a closed loop: conditions in metres, instead of clean drives -----

# Of all drives and of each, beside their figures.
_COUNTS: Final = ("frames", "answered")
# Of a live run.
_LIVE: Final = (
    *("latency_ms_p50", "latency_ms_p99", "slipped_ms"),
    *("unanswered", "answered_share", "late_share"),
)


def gate_names(selection: Selection) -> tuple[str, ...]:
    """Return the names of the figures that drives will have, before any is driven."""
    figures = tuple(figures_of([]).as_json())
    drives = (f"{one.scenario}-{one.seed}" for one in selection.errands())
    return (
        *figures,
        *_COUNTS,
        *_LIVE,
        *(f"scenarios.{one.name}.{name}" for one in selection.scenarios for name in figures),
        *(f"per_drive.{drive}.{name}" for drive in drives for name in (*figures, *_COUNTS)),
    )


def judge_outcome(outcome: Outcome, gates: Sequence[Gate]) -> tuple[GateVerdict, ...]:
    """Judge each gate; one about an unmeasured quantity holds."""
    figures = dict.fromkeys(_LIVE, math.nan) | dict(numbers_of(outcome.as_json()))
    return judge({k: None if math.isnan(v) else v for k, v in figures.items()}, gates)
