"""``modeld bench --start``: measures the time from the daemon's start to its first message.

All starts are warm: camera and bus exist, the kernels are in the kernel cache, and the artifact is
in the page cache. Each start is a new process. After its first message it is killed (SIGKILL) and
restarted immediately, the way a supervisor does.

- ``start_ms``: time from the start of the process to the timestamp of the first modelV2.
- ``restart_ms``: time from the kill to the timestamp of the next process's first modelV2.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cereal.schema import read_event
from cereal.transport import ZmqTransport
from tools.bench.daemon import RATE_HZ, camera_config, camera_size
from tools.errors import UsageError
from tools.lib.json_output import print_json
from tools.lib.processes import Child, ProcessError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

SERVICE = "modelV2"
TIMEOUT_S = 120.0  # for one start, which can include building kernels
POLL_S = 0.002
FRAMES_AHEAD = 100_000  # more frames than any benchmark needs


def run(args: argparse.Namespace) -> int:
    """Measure, print the result and return exit code 0.

    Raises:
        UsageError: there is no `--model`, or the camera size is invalid.
        ArtifactError, ArtifactMismatchError: the file is no driving artifact for that camera.
        ProcessError: a process ended, or published nothing.
    """
    if args.model is None:
        raise UsageError("--start: expected the artifact as --model driving.pkl, found none")
    result = measure(args.model, camera_size(args.model, args.camera), args.start, args.device)
    if args.json:
        print_json(result)
    else:
        for name, text in (("start", "from its start"), ("restart", "from a kill")):
            values = ", ".join(f"{result[f'{name}_ms_{p}']:.0f} {p}" for p in ("p50", "max"))
            print(f"{name:8} ms  {values}  ({text} to the first {SERVICE})")
    return 0


def measure(
    model: Path, size: tuple[int, int], starts: int, device: str | None = None
) -> dict[str, Any]:
    """Start and restart the daemon `starts` times; return the object of ``--json``.

    `model` is the driving artifact, `size` the (width, height) of the cameras.

    Raises:
        ProcessError: a process ended, or published nothing.
    """
    with tempfile.TemporaryDirectory(prefix="modeld-start-") as directory, ExitStack() as stack:
        bus, server = f"ipc://{directory}", f"start-{os.getpid()}"
        config = Path(directory) / "start.toml"
        config.write_text(camera_config(size), encoding="utf-8")
        transport = ZmqTransport(bus)
        stack.callback(transport.close)
        serve = ["--server", server, "--bus", bus, "--size", *map(str, size)]
        serve += ["--frames", str(FRAMES_AHEAD), "--rate-hz", str(RATE_HZ)]
        camera = stack.enter_context(Child("camera", "tools.bench.camera", serve))
        work = ["run", "--model", str(model), "--demo", "--config", str(config), "--bus", bus]
        work += ["--camera-server", server, *(["--device", device] if device else [])]
        # The first start fills caches, and waits for the camera.
        with Child("daemon", "tools.cli", work) as first:
            _first_message_ns(transport, first, camera)
        starts_ms: list[float] = []
        restarts_ms: list[float] = []
        for _ in range(starts):
            begun_ns = time.monotonic_ns()
            with Child("daemon", "tools.cli", work) as child:
                starts_ms.append((_first_message_ns(transport, child, camera) - begun_ns) / 1e6)
                begun_ns = time.monotonic_ns()
                os.kill(child.pid, signal.SIGKILL)
                with Child("daemon", "tools.cli", work) as again:
                    ended_ns = _first_message_ns(transport, again, camera, after_ns=begun_ns)
                    restarts_ms.append((ended_ns - begun_ns) / 1e6)
        return {
            "starts": starts,
            **_figures("start", starts_ms),
            **_figures("restart", restarts_ms),
        }


def _figures(name: str, values_ms: Sequence[float]) -> dict[str, float]:
    return {f"{name}_ms_p50": float(np.median(values_ms)), f"{name}_ms_max": max(values_ms)}


def _first_message_ns(
    transport: ZmqTransport, child: Child, camera: Child, after_ns: int = 0
) -> int:
    """Return the timestamp of the daemon's first message after `after_ns`, monotonic clock, ns."""
    path = transport.endpoint(SERVICE).removeprefix("ipc://")
    deadline_s = time.monotonic() + TIMEOUT_S
    # A subscriber without a publisher retries only every 100 ms or later, so subscribe once the
    # publisher exists.
    while not _listened(path):
        _check(child, camera, deadline_s)
        time.sleep(POLL_S)
    subscriber = transport.subscriber(SERVICE)
    try:
        while True:
            _check(child, camera, deadline_s)
            data = subscriber.receive(100)
            if data is not None and (stamp_ns := read_event(data).logMonoTime) > after_ns:
                return int(stamp_ns)
    finally:
        subscriber.close()


def _check(child: Child, camera: Child, deadline_s: float) -> None:
    child.check_running()
    camera.check_running()
    if time.monotonic() > deadline_s:
        raise ProcessError(
            f"{child.name}: expected a {SERVICE} within {TIMEOUT_S:g} s, found none; run it by "
            "hand with -v: modeld run --model ... --demo -v"
        )


def _listened(path: str) -> bool:
    """Return whether a process listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == 0
