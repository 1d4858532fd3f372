"""The closed loop with a real daemon process, over the real bus and frame rings, in real time.

The simulation advances whether or not the daemon answers, and executes the command of each modelV2
on arrival. One daemon process is used for all drives. Timestamps and frame ids continue from drive
to drive, and each drive starts with a run-up that fills the model's history.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from cereal.clock import MonotonicClock
from cereal.errors import FrameError, TransportError
from cereal.schema import content, read_event
from modeld.service.config import LONGEST_WAIT_MS
from tools.errors import ToolError
from tools.lib.processes import Child, ProcessError
from tools.playback.player.live_answers import MODEL_SERVICE, LiveLog
from tools.simulator.closed_loop.daemon_driver import action_in, ignore
from tools.simulator.closed_loop.device import (
    ENDED_BEFORE_NS,
    Cameras,
    CarMessages,
    LiveBus,
    Record,
    camera_message,
    device_cameras,
)
from tools.simulator.closed_loop.result import Drive, OnDrive
from tools.simulator.closed_loop.simulation import RUN_UP_TICKS, TICKS_PER_FRAME, Simulation
from tools.simulator.closed_loop.trial import Trial
from tools.simulator.render.messages import ReportedValues

# Covers loading, and building kernels if the artifact has no binaries.
START_TIMEOUT_S: Final = 120.0
# Longest time without a modelV2 before the drive fails.
SILENCE_S: Final = 5.0
FULL_RATE_HZ: Final = 20.0
NS_PER_MS: Final = 1_000_000
# The daemon's frame timeout at full rate.
FRAME_TIMEOUT_MS: Final = 100
# Minimum share of a period between two frames. The daemon would drop one of two frames in a burst.
LEAST_PERIOD: Final = 0.8
_CAR_PARAMS_FRAMES: Final = 20
# Called before each frame is rendered, with its id and the simulation.
OnFrame = Callable[[int, Simulation], None]
_ADVICE: Final = "run it by hand with -v: modeld run --model ... -v"


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """The options of a live run.

    Without a bus or server, private ones are used; without a device, the best one. A rate below
    20 Hz is slow motion. With `is_trial` the speed of this machine is not known yet, so the frame
    timeout is the longest possible.
    """

    model: Path
    bus: str | None = None
    rate_hz: float = FULL_RATE_HZ
    device: str | None = None
    log: Path | None = None
    is_quiet: bool = False
    server: str | None = None
    is_trial: bool = False

    @property
    def frame_timeout_ms(self) -> int:
        """The daemon's frame timeout in ms.

        At full rate it is two periods, as for a real camera. In slow motion the machine is busy, so
        it is four periods. It is limited to the daemon's maximum.
        """
        periods = FRAME_TIMEOUT_MS if self.rate_hz >= FULL_RATE_HZ else round(4e3 / self.rate_hz)
        return LONGEST_WAIT_MS if self.is_trial else min(periods, LONGEST_WAIT_MS)


@dataclass(slots=True)
class Pace:
    """The timing of a live drive.

    Attributes:
        latencies_ms: time from the announcement of each frame to the arrival of its answer.
        slipped_ms: total time by which the simulation fell behind the clock.
    """

    latencies_ms: list[float] = field(default_factory=list)
    slipped_ms: float = 0.0


class LiveLoop:
    """Drives a simulated car with a running daemon process.

    A change of `rate_hz` takes effect with the next frame; `pace` covers all drives so far.
    """

    def __init__(self, bus: LiveBus, daemon: Child, rate_hz: float) -> None:
        self.rate_hz = rate_hz
        self.pace = Pace()
        self._bus, self.daemon = bus, daemon
        self._clock = MonotonicClock()
        self._frame_id = self._first_id = 0
        self._made: tuple[Trial, Cameras] | None = None
        self._heard_ns = self._published_ns = self._clock.now_ns()
        self._answered = 0

    @property
    def _tick_ns(self) -> int:
        return round(1e9 / self.rate_hz / TICKS_PER_FRAME)

    def drive(
        self, trial: Trial, most_frames: int | None = None, on_frame: OnFrame | None = None
    ) -> Drive:
        """Drive to the end, or for `most_frames` from the hand-over.

        Raises:
            ProcessError: the daemon ended, or stopped publishing.
        """
        start_s = time.perf_counter()
        simulation = Simulation(trial)
        cameras, messages = self._cameras_of(trial), CarMessages(simulation)
        self._answered, self._first_id = 0, self._frame_id
        self._heard_ns = due_ns = self._clock.now_ns()
        last_tick = math.inf
        if most_frames is not None:
            last_tick = RUN_UP_TICKS + most_frames * TICKS_PER_FRAME
        while simulation.end is None and simulation.ticks < last_tick:
            if on_frame is not None:
                on_frame(self._frame_id, simulation)
            due_ns = self._frame(simulation, cameras, messages, due_ns)
            for _ in range(TICKS_PER_FRAME):
                due_ns += self._tick_ns
                self._listen(due_ns, simulation)
                simulation.tick()
                self._bus.send(messages.tick_messages(self._clock.now_ns()))
        wall_s = time.perf_counter() - start_s
        return Drive(simulation.track, simulation.frame, self._answered, wall_s)

    def wait_for_answer(self, trial: Trial, timeout_s: float, answers: int = 1) -> None:
        """Stand at the start of a drive until the daemon has answered `answers` frames.

        Raises:
            ProcessError: the daemon ended, or did not answer in time.
        """
        simulation = Simulation(trial)
        messages = CarMessages(simulation, _parked)
        cameras = self._cameras_of(trial)
        deadline_ns = self._clock.now_ns() + round(timeout_s * 1e9)
        due_ns = self._clock.now_ns()
        while self._answered < answers:
            self._heard_ns = self._clock.now_ns()
            # A starting daemon waits for carParams, so they are sent with every frame.
            self._bus.send(messages.car_params(self._heard_ns))
            due_ns = self._frame(simulation, cameras, messages, due_ns)
            self._bus.send(messages.tick_messages(self._clock.now_ns()))
            due_ns += TICKS_PER_FRAME * self._tick_ns
            self._listen(due_ns, simulation)
            if self._clock.now_ns() > deadline_ns:
                raise ProcessError(
                    f"daemon: expected a valid modelV2 within {timeout_s:g} s, found none; "
                    f"{_ADVICE}"
                )

    def _cameras_of(self, trial: Trial) -> Cameras:
        """Return the cameras of a drive, reused if the last drive was the same.

        Creating them takes longer than the daemon waits for a frame between standing and driving.
        """
        if self._made is None or self._made[0] is not trial:
            self._made = trial, Cameras(trial, device_cameras())
        return self._made[1]

    def _frame(
        self, simulation: Simulation, cameras: Cameras, messages: CarMessages, due_ns: int
    ) -> int:
        """Send the present frames; return their due time, postponed if it was missed."""
        self.daemon.check_running()
        period_ns = TICKS_PER_FRAME * self._tick_ns
        late_ns = self._clock.now_ns() - due_ns
        if late_ns > period_ns // 2:
            # This machine cannot keep up: delay the simulation instead of dropping a frame.
            self.pace.slipped_ms += late_ns * 1e-6
            due_ns += late_ns
        frames = cameras.frames(simulation, self._frame_id - simulation.frame, due_ns)
        self._bus.fill(frames)
        self._clock.sleep_until_ns(self._published_ns + round(LEAST_PERIOD * period_ns))
        self._published_ns = self._clock.now_ns()
        if self._frame_id % _CAR_PARAMS_FRAMES == 0:
            self._bus.send(messages.car_params(self._published_ns))
        self._bus.send(messages.frame_messages(self._published_ns))
        for stream, frame in frames.items():
            self._bus.publish(frame, stream)
            self._bus.send([camera_message(stream, frame.frame_id, due_ns)])
        self._frame_id += 1
        return due_ns

    def _listen(self, until_ns: int, simulation: Simulation) -> None:
        """Execute arriving commands until a time; check for messages at least once."""
        while True:
            left_ns = until_ns - self._clock.now_ns()
            for data in self._bus.receive(max(0, left_ns // NS_PER_MS)):
                self._take(data, simulation)
            if left_ns < NS_PER_MS:
                break
        self._clock.sleep_until_ns(until_ns)
        if self._clock.now_ns() - self._heard_ns > SILENCE_S * 1e9:
            raise ProcessError(
                f"daemon: expected a modelV2 at least every {SILENCE_S:g} s, found none; {_ADVICE}"
            )

    def _take(self, data: bytes, simulation: Simulation) -> None:
        event = read_event(data)
        if event.which() != MODEL_SERVICE:
            return
        self._heard_ns = self._clock.now_ns()
        shown_ns = content(event).timestampEof + ENDED_BEFORE_NS
        self.pace.latencies_ms.append((self._heard_ns - shown_ns) * 1e-6)
        action = action_in([data])
        if action is not None:
            simulation.action = action
            # Count only answers of this drive; those of the previous drive's last frames can arrive
            # late.
            self._answered += content(event).frameId >= self._first_id


def _parked(reported: ReportedValues) -> ReportedValues:
    """Report a standing car, because an unchanging picture of a moving car is a fault."""
    return replace(reported, speed_mps=0.0)


@contextmanager
def live_loop(options: LiveOptions) -> Iterator[LiveLoop]:
    """Start a daemon process and yield a loop that drives with it; stop the daemon at the end.

    Raises:
        ToolError: the bus or the rings are in use.
        ProcessError: the daemon did not exit cleanly.
        CerealError: the address is invalid, or the log cannot be written.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="modeld-drive-"))
        address = options.bus or f"ipc://{directory}"
        server = options.server or f"drive-{os.getpid()}"
        record: Record = ignore
        if options.log is not None:
            record = stack.enter_context(LiveLog(options.log)).write
        try:
            bus = stack.enter_context(LiveBus(address, server, record))
        except (TransportError, FrameError) as error:
            advice = "; name another --bus, or leave it out"
            raise ToolError(
                f"the simulated car cannot publish: {' '.join(str(error).split())}"
                f"{advice * isinstance(error, TransportError)}"
            ) from error
        # Params come from the temporary directory, not from a stack installed on this machine.
        arguments = ["run", "--model", str(options.model), "--bus", address]
        arguments += ["--camera-server", server, "--params", directory]
        arguments += ["--device", options.device] if options.device else []
        arguments += ["-q"] if options.is_quiet else []
        config = Path(directory) / "drive.toml"
        wait_ms = options.frame_timeout_ms
        config.write_text(f"frame_timeout_ms = {wait_ms}\n", encoding="utf-8")
        arguments += ["--config", str(config)]
        daemon = stack.enter_context(Child("daemon", "tools.cli", arguments))
        yield LiveLoop(bus, daemon, options.rate_hz)
        code = daemon.stop()
        if code != 0:
            raise ProcessError(f"daemon: expected exit code 0 after SIGTERM, found {code}")


def live_drives(
    trials: Iterable[Trial], options: LiveOptions, on_drive: OnDrive | None = None
) -> tuple[list[Drive], Pace]:
    """Drive all trials with one daemon process.

    Raises:
        ToolError, ProcessError, CerealError: as `live_loop` and `LiveLoop.drive`.
    """
    drives: list[Drive] = []
    with live_loop(options) as loop:
        for trial in trials:
            if not drives:
                loop.wait_for_answer(trial, START_TIMEOUT_S)
                loop.pace = Pace()
            drives.append(loop.drive(trial))
            if on_drive is not None:
                on_drive(drives[-1])
    return drives, loop.pace


def live_facts(options: LiveOptions, drives: list[Drive], pace: Pace) -> dict[str, Any]:
    """Return the facts of a live run other than its driving metrics.

    A frame is late if its answer does not arrive within one period.
    """
    latencies = np.array(pace.latencies_ms or [np.nan])
    frames = max(1, sum(drive.frames for drive in drives))
    answered = sum(drive.answered for drive in drives)
    in_time = min(frames, int((latencies <= 1e3 / options.rate_hz).sum()))
    return {
        "live": True,
        "rate_hz": options.rate_hz,
        "latency_ms_p50": round(float(np.percentile(latencies, 50)), 2),
        "latency_ms_p99": round(float(np.percentile(latencies, 99)), 2),
        "slipped_ms": round(pace.slipped_ms, 1),
        "unanswered": frames - answered,
        "answered_share": round(answered / frames, 5),
        "late_share": round(1.0 - in_time / frames, 5),
    }
