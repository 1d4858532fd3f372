"""A daemon with its cameras, its car and a listener, each real, in a directory of its own."""

import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cereal.frames import nv12_format
from tests.faults.cameras import NORMAL, Cameras
from tests.faults.faulty_opencl import Control
from tests.faults.recorder import Message, Recorder
from tests.faults.service import Service, Setup
from tests.faults.vehicle import Vehicle
from tests.faults.vision_cameras import VisionCameras
from tests.support.waiting import until
from tests.tools.tiny_driving import write_tiny_driving

PRIMARY_MPS, FALLBACK_MPS = 15.0, 9.0
LOG_PAUSE_S = 1.2
# Of the largest camera that the models have room for.
ROOM = (512, 256)
SHORT_RUNS = "run_timeout_ms = 200"
SMALL_CAMERAS = """
[camera]
road = {width = 256, height = 128, focal_px = 121.0}
wide = {width = 256, height = 128, focal_px = 60.0}
"""
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class World:
    """All processes and threads of one car."""

    directory: Path
    service: Service
    cameras: Cameras
    vehicle: Vehicle
    recorder: Recorder
    control: Control

    def wait_valid(self, start_ns: int | None = None, timeout_s: float = 10.0) -> float:
        """Wait for three valid messages in a row; return seconds from the start to the first."""
        begin_ns = time.monotonic_ns() if start_ns is None else start_ns
        find = functools.partial(self.recorder.valid_again, begin_ns)
        first = self.service.wait(find, timeout_s, "no three valid messages")
        return (first.arrived_ns - begin_ns) / 1e9

    def wait_message(
        self, seen: Callable[[Message], bool], start_ns: int, timeout_s: float = 5.0
    ) -> Message:
        return self.service.wait(
            lambda: next(filter(seen, self.recorder.since(start_ns)), None),
            timeout_s,
            "no such message",
        )

    def restore(self) -> None:
        """Take all faults back and wait until the daemon is well."""
        self.control.clear()
        self.cameras.reset()
        self.vehicle.reset()
        if not until(functools.partial(self.recorder.valid_again, time.monotonic_ns()), 3.0):
            # What a test before left broken must not fail this one.
            self.cameras.restart()
        self.wait_valid()
        # What went wrong is over for the log after a second: what comes next is said again.
        time.sleep(LOG_PAUSE_S)
        self.wait_valid()


def is_fallback(speed_mps: float) -> bool:
    """Whether the plan is the fallback model's."""
    return abs(speed_mps - FALLBACK_MPS) < 0.5


@contextmanager
def running_world(
    directory: Path,
    *,
    more: str = "",
    fallback: bool = False,
    faulty: bool = False,
    restarts: bool = False,
    model: Path | None = None,
    before: Callable[[Path], object] = lambda _directory: None,
    prefix: str = "",
    **setup: Any,
) -> Iterator[World]:
    """Make models, configuration, cameras, car, listener and daemon.

    Args:
        directory: empty; its path must be short enough for sockets.
        more: lines of the configuration.
        fallback: let another model drive on when the first one fails.
        faulty: run with the OpenCL layer that fails on command.
        restarts: restart the process as systemd would.
        model: a driving artifact for cameras of 1928x1208, in place of the two small ones.
        before: is given the directory when all but the process is there.
        prefix: of openpilot, by whose VisionIPC frames come then; else they come in rings.
        setup: how the process is started, beside its arguments: fields of `Setup`.
    """
    server = "visionipc:camerad" if prefix else f"faults_{os.getpid()}_{next(_numbers)}"
    form = NORMAL if model is None else nv12_format(1928, 1208)
    if model is None:
        more += SMALL_CAMERAS
        for name, speed_mps in (("primary", PRIMARY_MPS), ("safe", FALLBACK_MPS)):
            write_tiny_driving(directory / f"{name}.pkl", ROOM, speed_mps=speed_mps, name=name)
        model = directory / "primary.pkl"
    for name in ("bus", "state"):
        (directory / name).mkdir(exist_ok=True)
    bus = f"ipc://{directory}/bus"
    lines = [f'model = "{model}"', "demo = true", f'bus_address = "{bus}"']
    lines += [f'camera_server = "{server}"']
    if fallback:
        lines += [f'fallback_model = "{directory}/safe.pkl"', f'state_dir = "{directory}/state"']
    settings = directory / "config.toml"
    settings.write_text("\n".join([*lines, more]), encoding="utf-8")
    control = Control(directory / "control")
    before(directory)
    if faulty:
        setup["control"] = directory / "control"
    if prefix:
        setup["environment"] = {"OPENPILOT_PREFIX": prefix}
    with ExitStack() as stack:
        made = VisionCameras(prefix) if prefix else Cameras(server, form)
        cameras = stack.enter_context(closing(made))
        vehicle = stack.enter_context(closing(Vehicle(bus, lambda: cameras.next_id - 1)))
        recorder = stack.enter_context(closing(Recorder(bus)))
        how = Setup(("-v", "--config", str(settings)), **setup)
        service = stack.enter_context(closing(Service(directory, how, restarts=restarts)))
        yield World(directory, service, cameras, vehicle, recorder, control)


@contextmanager
def world_with_fallback(directory: Path, **more: Any) -> Iterator[World]:
    """A daemon with both models, which is restarted as systemd would; it drives the primary."""
    with running_world(
        directory, more=SHORT_RUNS, fallback=True, faulty=True, restarts=True, **more
    ) as world:
        world.wait_valid()
        assert world.recorder.messages[-1].speed_mps == pytest.approx(PRIMARY_MPS, abs=0.5)
        yield world
