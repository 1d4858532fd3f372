"""Runs trials with the expert or with the daemon's code, in one or several processes.

A *trial* is one drive of a scenario with a seed. A driver returns one command per frame, which
takes effect `ANSWER_S` later, as on a device. `judge_outcome` checks gates on the results.
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

# Delay from the exposure of a picture until its command reaches the car: warp, model and bus.
# A device takes 30 to 50 ms.
ANSWER_TICKS = 4
ANSWER_S = ANSWER_TICKS * TICK_S


class Driver(Protocol):
    """A driver of a simulated car."""

    answered: int
    """Number of frames so far with a valid answer."""

    def tick(self) -> None:
        """Observe the car; called every 10 ms, also at the start."""

    def answer(self) -> Action | None:
        """Return the command for a frame; None keeps the last one."""

    def close(self) -> None:
        """End the drive."""


def drive(simulation: Simulation, driver: Driver) -> Track:
    """Drive a simulation from start to end."""
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
    """The expert, which knows the road and all vehicles, and drives the same car as a model."""

    def __init__(self, simulation: Simulation) -> None:
        trial = simulation.trial
        self.answered = 0
        self._simulation = simulation
        self._lane = trial.lane
        self._expert = Expert(trial.world, trial.lane, simulation.set_speed_mps)

    def tick(self) -> None:
        """Do nothing, because the expert reads the simulation."""

    def answer(self) -> Action | None:
        """Plan, and derive the command from the plan as the daemon does."""
        simulation = self._simulation
        if simulation.lane != self._lane:
            self._expert.change_lane(simulation.lane - self._lane, simulation.time_s)
            self._lane = simulation.lane
        plan = self._expert.plan(simulation.body, simulation.vehicles)
        wanted = command(plan, simulation.car.model.lateral_delay_s + ANSWER_S)
        self.answered += 1
        return Action(wanted.curvature_1pm, wanted.acceleration_mps2)

    def close(self) -> None:
        """Do nothing, because the expert holds no resources."""


# Time between two drives in a log.
BETWEEN_NS = 1_000_000_000
MakeDriver = Callable[[Simulation], Driver]


@dataclass(frozen=True, slots=True)
class DriveRequest:
    """One drive, described for another process; None selects the scenario's length and no fault."""

    scenario: str
    seed: int
    length_m: float | None = None
    fault: str | None = None

    def trial(self) -> Trial:
        """Create the trial of the drive."""
        return make_trial(SCENARIOS[self.scenario], self.seed, self.length_m)


@dataclass(frozen=True, slots=True)
class Selection:
    """`drives` seeds from `seed` on for each scenario; None selects the scenario's length."""

    scenarios: tuple[Scenario, ...] = (STANDARD,)
    seed: int = 0
    drives: int = 1
    length_m: float | None = None

    def requests(self, fault: str | None = None) -> list[DriveRequest]:
        """Return all drives, each with the given fault."""
        return [
            DriveRequest(scenario.name, seed, self.length_m, fault)
            for scenario in self.scenarios
            for seed in range(self.seed, self.seed + self.drives)
        ]

    def trials(self) -> Iterable[Trial]:
        """Create the trials one by one, to save memory."""
        return (request.trial() for request in self.requests())


def scenarios_named(names: Iterable[str]) -> tuple[Scenario, ...]:
    """Return scenarios by name; ``all`` selects all of them, no name the standard one.

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
    """Drive a selection with the expert instead of a model."""
    return drive_all(selection, ExpertDriver, on_drive)


@dataclass(slots=True)
class DaemonDrivers:
    """Creates drivers that share a program; their log times follow each other.

    `record` is called with the bytes of every event; `fault` is injected into each drive.
    """

    program: DrivingProgram
    fault: Fault | None = None
    record: Callable[[bytes], None] = ignore
    cameras: DeviceCameras = field(default_factory=cropped_cameras)
    _last: Simulation | None = None
    _start_ns: int = START_NS

    def __call__(self, simulation: Simulation) -> DaemonDriver:
        """Return a driver for a simulation."""
        if self._last is not None:
            self._start_ns += self._last.frame * FRAME_NS + BETWEEN_NS
        self._last = simulation
        disturbance = Disturbance() if self.fault is None else self.fault.plant()
        wire = Wire(self.record, self._start_ns, disturbance, self.cameras)
        return DaemonDriver(simulation, self.program, wire)


# --- Drives in several processes, with identical results -----------------------------------------
#
# Each process loads the program once and drives one trial after another. If one fails or dies, the
# run ends with a one-line error; finished drives have been reported by then.


class _Driven(NamedTuple):
    """A drive without its trial, which the receiver rebuilds.

    Attributes:
        position: index of the drive.
        samples, end: fields of its track.
        frames: number of frames that the cameras exposed.
        answered: number of frames with a valid answer.
        wall_s: duration of the run.
    """

    position: int
    samples: Any
    end: str
    frames: int
    answered: int
    wall_s: float


@dataclass(frozen=True, slots=True)
class _Plan:
    """The plan shared by all processes.

    Attributes:
        requests: all drives.
        model: the driving artifact.
        device: the OpenCL device; None selects the best.
        threads: number of threads of each process's OpenCL driver.
        level: the log level of all processes.
    """

    requests: tuple[DriveRequest, ...]
    model: Path
    device: str | None
    threads: int
    level: int


def drive_in_processes(
    requests: Sequence[DriveRequest],
    model: Path,
    device: str | None,
    workers: int,
    on_drive: OnDrive | None = None,
) -> tuple[list[Drive], str]:
    """Drive in several processes.

    Args:
        requests: the drives.
        model: the driving artifact.
        device: the OpenCL device; None selects the best.
        workers: the number of processes.
        on_drive: called after each drive, in the order in which they end.

    Returns:
        The drives in the order of `requests`, and the name of the device.

    Raises:
        ToolError: a process failed or died.
    """
    count = min(workers, len(requests))
    level = logging.getLogger().level
    plan = _Plan(tuple(requests), model, device, threads_of_one(count), level)
    # Index of the next drive; each idle process takes one.
    taken = multiprocessing.get_context("spawn").Value("q", 0)
    gone = ToolError(
        "--workers: expected the driving processes to go on, found one dead; is there "
        "enough memory? Try --workers 1"
    )
    drives: dict[int, Drive] = {}
    name = ""
    with open_crew(_drive, [(plan, taken)] * count, gone) as crew:
        while len(drives) < len(requests):
            for message in crew.receive(1.0):
                if isinstance(message, str):
                    name = message
                    continue
                drive = _rebuilt(requests[message.position], message)
                drives[message.position] = drive
                if on_drive is not None:
                    on_drive(drive)
    return [drives[position] for position in range(len(requests))], name


def _rebuilt(request: DriveRequest, driven: _Driven) -> Drive:
    track = Track(request.trial(), driven.samples, End(driven.end))
    return Drive(track, driven.frames, driven.answered, driven.wall_s, request.fault or "")


def _drive(plan: _Plan, taken: Any, is_stopped: IsStopped, send: Send) -> None:
    """Run drives until none is left; this is the main function of a worker process.

    Raises:
        ToolError: the drive failed. Only the message is kept, as not every error can be pickled.
    """
    limit_threads(plan.threads)
    logging.basicConfig(
        level=plan.level, stream=sys.stderr, format="%(levelname).1s %(name)s: %(message)s"
    )
    try:
        with load_model(plan.model, plan.device) as loaded:
            send(loaded.device)
            while not is_stopped() and (position := _next(taken)) < len(plan.requests):
                request = plan.requests[position]
                fault = None if request.fault is None else FAULTS[request.fault]
                done = drive_one(request.trial(), DaemonDrivers(loaded.program, fault))
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


# --- Gates: conditions on the metrics ------------------------------------------------------------

# Counts that are available in addition to the metrics.
_COUNTS: Final = ("frames", "answered")
# Metrics of a live run.
_LIVE: Final = (
    *("latency_ms_p50", "latency_ms_p99", "slipped_ms"),
    *("unanswered", "answered_share", "late_share"),
)


def gate_names(selection: Selection) -> tuple[str, ...]:
    """Return the names of all metrics of the drives, before they are driven."""
    figures = tuple(figures_of([]).as_json())
    drives = (f"{one.scenario}-{one.seed}" for one in selection.requests())
    return (
        *figures,
        *_COUNTS,
        *_LIVE,
        *(f"scenarios.{one.name}.{name}" for one in selection.scenarios for name in figures),
        *(f"per_drive.{drive}.{name}" for drive in drives for name in (*figures, *_COUNTS)),
    )


def judge_outcome(outcome: Outcome, gates: Sequence[Gate]) -> tuple[GateVerdict, ...]:
    """Judge each gate; a gate on an unmeasured metric passes."""
    figures = dict.fromkeys(_LIVE, math.nan) | dict(numbers_of(outcome.as_json()))
    return judge({k: None if math.isnan(v) else v for k, v in figures.items()}, gates)
