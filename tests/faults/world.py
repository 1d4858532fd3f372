"""A daemon with its cameras, its car and a listener, each real, in a directory of its own."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cereal.frames import nv12_format
from tests.faults.cameras import NORMAL, Cameras
from tests.faults.faulty_opencl import Control
from tests.faults.recorder import Message, Recorder
from tests.faults.service import Service, Setup
from tests.faults.vehicle import Vehicle
from tests.tools.tiny_driving import write_tiny_driving

PRIMARY_MPS, FALLBACK_MPS = 15.0, 9.0
LOG_PAUSE_S = 1.2
# Of the largest camera that the models have room for.
ROOM = (512, 256)
SETTINGS = """
model = "{model}"
demo = true
bus_address = "ipc://{directory}/bus"
camera_server = "{server}"
{more}
"""
SMALL_CAMERAS = """
[camera.road]
width = 256
height = 128
focal_px = 121.0
[camera.wide]
width = 256
height = 128
focal_px = 60.0
"""
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class World:
    """All processes and threads of one car.

    Attributes:
        directory: of models, configuration, bus and state.
        service: the daemon.
        cameras: of the car.
        vehicle: the rest of the car.
        recorder: what the daemon says.
        control: orders faults of the OpenCL layer.
    """

    directory: Path
    service: Service
    cameras: Cameras
    vehicle: Vehicle
    recorder: Recorder
    control: Control

    def wait_valid(
        self, start_ns: int | None = None, timeout_s: float = 10.0, *, count: int = 3
    ) -> float:
        """Wait for some valid messages in a row; return seconds from the start to the first."""
        begin_ns = time.monotonic_ns() if start_ns is None else start_ns
        found = self.recorder.wait(
            lambda seen: _run_of_valid(seen, count) is not None, begin_ns, timeout_s
        )
        assert found, f"no {count} valid messages within {timeout_s} s:\n{self.service.text()}"
        first = _run_of_valid(self.recorder.since(begin_ns), count)
        assert first is not None
        return (first.arrived_ns - begin_ns) / 1e9

    def wait_message(
        self,
        seen: Callable[[Message], bool],
        start_ns: int,
        timeout_s: float = 5.0,
    ) -> Message:
        """Wait for a message; AssertionError with the log if it does not come."""
        found = self.recorder.wait(lambda all_: any(map(seen, all_)), start_ns, timeout_s)
        assert found, f"no such message within {timeout_s} s:\n{self.service.text()}"
        return next(filter(seen, self.recorder.since(start_ns)))

    def restore(self) -> None:
        """Take all faults back and wait until the daemon is well."""
        self.control.clear()
        self.cameras.reset()
        self.vehicle.reset()
        begin_ns = time.monotonic_ns()
        if not self.recorder.wait(lambda seen: _run_of_valid(seen, 3) is not None, begin_ns, 3.0):
            # What a test before left broken must not fail this one.
            self.cameras.restart()
        self.wait_valid()
        # What went wrong is over for the log after a second: what comes next is said again.
        time.sleep(LOG_PAUSE_S)
        self.wait_valid()


def _run_of_valid(messages: list[Message], count: int) -> Message | None:
    """First of `count` valid messages in a row, up to the last one."""
    tail = messages[-count:]
    if len(tail) < count or not all(message.valid for message in tail):
        return None
    first = tail[0]
    for message in reversed(messages):
        if not message.valid:
            break
        first = message
    return first


def write_settings(directory: Path, server: str, model: Path, more: str) -> Path:
    """Write the configuration file."""
    path = directory / "config.toml"
    text = SETTINGS.format(directory=directory, server=server, model=model, more=more)
    path.write_text(text, encoding="utf-8")
    return path


@contextmanager
def running_world(
    directory: Path,
    *,
    more: str = "",
    faulty: bool = False,
    restarts: bool = False,
    model: Path | None = None,
    change: Callable[[Setup], Setup] = lambda setup: setup,
) -> Iterator[World]:
    """Make models, configuration, cameras, car, listener and daemon.

    Args:
        directory: empty; its path must be short enough for sockets.
        more: lines of the configuration.
        faulty: run with the OpenCL layer that fails on command.
        restarts: restart the process as systemd would.
        model: a driving artifact for cameras of 1928x1208, in place of the two small ones.
        change: of how the process is started.
    """
    server = f"faults_{os.getpid()}_{next(_numbers)}"
    form = NORMAL
    if model is None:
        for name, speed_mps in (("primary", PRIMARY_MPS), ("safe", FALLBACK_MPS)):
            write_tiny_driving(directory / f"{name}.pkl", ROOM, speed_mps=speed_mps, name=name)
        settings = write_settings(
            directory, server, directory / "primary.pkl", more + SMALL_CAMERAS
        )
    else:
        form = nv12_format(1928, 1208)
        settings = write_settings(directory, server, model, more)
    (directory / "bus").mkdir(exist_ok=True)
    control = Control(directory / "control")
    arguments = ("-v", "--config", str(settings))
    setup = change(Setup(arguments, control=directory / "control" if faulty else None))
    with ExitStack() as stack:
        cameras = Cameras(server, form)
        stack.callback(cameras.close)
        vehicle = Vehicle(f"ipc://{directory}/bus", lambda: cameras.next_id - 1)
        stack.callback(vehicle.close)
        recorder = Recorder(f"ipc://{directory}/bus")
        stack.callback(recorder.close)
        service = Service(directory, setup, restarts=restarts)
        stack.callback(service.close)
        yield World(directory, service, cameras, vehicle, recorder, control)
