"""What a daemon takes while it waits for frames that do not come, for ``modeld bench --bus``."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from cereal.frames import FrameRingWriter, nv12_format
from cereal.visionipc.server import VisionIpcServer
from modeld.health.reporter import HEALTH_SERVICES
from tools.bench.publisher import BUFFERS, FRAME_SIZE, STACK, open_bus
from tools.lib.processes import Child, ProcessError

if TYPE_CHECKING:
    from cereal.transport.base import Subscriber

STREAMS = ("road", "wideRoad")
SERVICE = HEALTH_SERVICES["driving"]
HEALTH_TIMEOUT_S = 60.0
# From the first word of its health until it is at rest.
SETTLE_S = 2.0


def idle_cpu_percent(model: Path, bus: str, prefix: str, seconds: float) -> float:
    """Return the CPU time of a daemon whose cameras are there but silent, in percent of one core.

    With rings of messages the cameras are VisionIPC's; `prefix` is that of the rings, or "".

    Raises:
        ProcessError: it ended, or is not heard.
    """
    server, layout = f"bench-{os.getpid()}", nv12_format(*FRAME_SIZE)
    with ExitStack() as stack:
        transport = open_bus(bus)
        stack.callback(transport.close)
        if prefix:
            cameras = stack.enter_context(
                VisionIpcServer(server, transport, stack=STACK, prefix=prefix)
            )
            for stream in STREAMS:
                cameras.create_buffers(stream, BUFFERS, layout)
            cameras.start()
        else:
            for stream in STREAMS:
                stack.callback(FrameRingWriter(server, stream, layout, BUFFERS).close)
        health = transport.subscriber(SERVICE, conflate=True)
        camera = f"visionipc:{server}" if prefix else server
        options = ["--model", str(model), "--demo", "--bus", bus, "--stack", STACK.name, "-q"]
        command = ["run", *options, "--camera-server", camera]
        environment = {"OPENPILOT_PREFIX": prefix} if prefix else {}
        with Child("daemon", "tools.cli", command, environment) as daemon:
            _await_health(health, daemon)
            time.sleep(SETTLE_S)
            before_s = _cpu_s(daemon.pid)
            began = time.monotonic()
            time.sleep(seconds)
            return 100 * (_cpu_s(daemon.pid) - before_s) / (time.monotonic() - began)


def _await_health(health: Subscriber, daemon: Child) -> None:
    deadline = time.monotonic() + HEALTH_TIMEOUT_S
    while health.receive(200) is None:
        daemon.check_running()
        if time.monotonic() > deadline:
            raise ProcessError(
                f"daemon: expected {SERVICE} within {HEALTH_TIMEOUT_S:g} s, found none; run it by "
                "hand with -v"
            )


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
