"""Drives a simulated car with the daemon's code in this process, on an in-memory bus.

The daemon's own loop runs on simulated *moments*. A moment is one frame of the main camera with the
messages since the previous frame.

    simulation -> messages, camera frames -> `DaemonDriver` -> command for the car
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from cereal.schema import read_event
from modeld.model.driving_model import DrivingProgram
from modeld.outputs.verdict import Action
from modeld.service.config import Config
from modeld.vehicle.cameras import DeviceCameras
from tools.drives.drive import DriveInfo, Message, Moment
from tools.messages.drive_messages import Mounting
from tools.playback.session import PlaybackSession, Programs
from tools.simulator.closed_loop.device import (
    DEVICE,
    SENSOR,
    Cameras,
    CarMessages,
    Disturb,
    Falsify,
    camera_message,
    cropped_cameras,
    formats,
)
from tools.simulator.closed_loop.simulation import FRAME_S, TICKS_PER_FRAME, Simulation
from tools.simulator.closed_loop.trial import Trial

# Start of the simulated monotonic clock, which must not be 0.
START_NS = 1_000_000_000
TICK_NS = 10_000_000
FRAME_NS = TICKS_PER_FRAME * TICK_NS


@dataclass(frozen=True, slots=True)
class Disturbance:
    """The faults injected between simulation and daemon in one drive; None for no fault.

    `pictures` changes camera pictures, `reported` changes reported values, and `program` wraps the
    model.
    """

    pictures: Disturb | None = None
    lenses_swapped: bool = False
    reported: Falsify | None = None
    program: Callable[[DrivingProgram], DrivingProgram] | None = None


def ignore(data: bytes) -> None:
    """Discard a record."""


@dataclass(frozen=True, slots=True)
class Wire:
    """The environment of the daemon, except for the car.

    Attributes:
        record: called with the bytes of every event of car and daemon, in time order.
        start_ns: timestamp of the first frame.
        disturbance: injected faults.
        cameras: cameras of the device.
    """

    record: Callable[[bytes], None] = ignore
    start_ns: int = START_NS
    disturbance: Disturbance = Disturbance()
    cameras: DeviceCameras = field(default_factory=cropped_cameras)


class DaemonDriver:
    """The daemon's own loop, on an in-memory bus with a manually advanced clock.

    The program, which must be a driving model, is reset before and after the drive.
    """

    def __init__(self, simulation: Simulation, program: DrivingProgram, wire: Wire) -> None:
        self.answered = 0
        disturbance = wire.disturbance
        self._simulation = simulation
        self._start_ns = wire.start_ns
        self._messages = CarMessages(simulation, disturbance.reported)
        self._cameras = Cameras(
            simulation.trial,
            wire.cameras,
            disturbance.pictures,
            are_swapped=disturbance.lenses_swapped,
        )
        self._pending: list[Message] = []
        car = self._messages.car_params(wire.start_ns)[0].data
        wire.record(car)
        between = program if disturbance.program is None else disturbance.program(program)
        info = drive_info(simulation.trial, wire.cameras, car)
        self._session = PlaybackSession(Config(demo=True), Programs(between), info, wire.record)
        self._session.warm_up()

    def tick(self) -> None:
        """Queue the car's messages of this tick."""
        time_ns = self._start_ns + self._simulation.ticks * TICK_NS
        self._pending += self._messages.tick_messages(time_ns)

    def answer(self) -> Action | None:
        """Pass the queued messages and new frames to the daemon; return its valid command."""
        simulation = self._simulation
        now_ns = self._start_ns + simulation.ticks * TICK_NS
        frames = self._cameras.frames(simulation, 0, now_ns)
        self._pending += self._messages.frame_messages(now_ns)
        self._pending += [camera_message(stream, simulation.frame, now_ns) for stream in frames]
        moment = Moment(simulation.frame, tuple(self._pending), frames)
        self._pending = []
        result = self._session.step(moment)
        if result is None or not result.published:
            return None
        action = action_in(self._session.answers)
        self.answered += action is not None
        return action

    def close(self) -> None:
        """Record the output of the last frame, and reset the program."""
        self._session.finish()
        self._session.reset()
        self._session.close()


def drive_info(trial: Trial, cameras: DeviceCameras, car_params: bytes) -> DriveInfo:
    """Return the description of a simulated drive for a playback session."""
    return DriveInfo(
        name=f"{trial.scenario.name}/{trial.seed}",
        kind="simulation",
        identity="",
        formats=formats(cameras),
        cameras=cameras,
        mounting=Mounting(DEVICE, SENSOR, trial.rpy_rad, trial.height_m),
        moments=None,
        rate_hz=1.0 / FRAME_S,
        car_params=car_params,
    )


def action_in(events: Iterable[bytes]) -> Action | None:
    """Return the command of the first valid modelV2 with finite numbers; None without one."""
    for data in events:
        event = read_event(data)
        if event.which() != "modelV2" or not event.valid:
            continue
        action = event.modelV2.action
        numbers = (action.desiredCurvature, action.desiredAcceleration)
        if np.isfinite(numbers).all():
            return Action(*numbers, action.shouldStop)
    return None
