"""``modeld bench --daemon``: the daemon as a process, fed at 20 Hz by another, watched from here.

What is measured, for the frames of the given time:

- ``frames``: published by the camera process; ``published``: modelV2 messages about them that
  arrived here; ``dropped``: the difference.
- ``exec_ms``: ``modelExecutionTime`` of modelV2, from inputs ready to outputs parsed.
- ``host_ms``: from the publication of the road frame to the arrival of modelV2 in this process,
  less ``exec_ms``: waking up, pairing, messages in, filling, sending, and the transport.
- ``rss_growth_mib``, ``fds_growth``: of the daemon's process, from the first to the last frame.

``source_late_ms``: how late the camera process published its frames; where that is more than a few
milliseconds the machine was busy with something else.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cereal.frame_format import nv12_format
from cereal.schema import content, read_event
from cereal.transport import ZmqTransport
from runtime.quantities import count_text
from tools.compile import parse_camera
from tools.errors import ToolError, UsageError
from tools.lib.json_output import print_json
from tools.lib.processes import Child, ProcessError
from tools.playback.model import check_frame, read_driving_artifact

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from cereal.transport.base import Subscriber

DEFAULT_CAMERA = "1928x1208"
RATE_HZ = 20.0
START_TIMEOUT_S = 120.0  # loading, and building kernels where the artifact has no binaries
SETTLE_S = 2.0  # after the first valid message: caches, clocks, connections
LAST_MESSAGE_S = 1.0
PARTS = ("p50", "p99", "max")
FOCAL_PER_WIDTH = {"road": 1.37, "wide": 0.29}  # any plausible camera: 2648 and 567 px of 1928


@dataclass(slots=True)
class Received:
    """The modelV2 messages that arrived: one value of each per message."""

    frame_ids: list[int] = field(default_factory=list)
    execution_ms: list[float] = field(default_factory=list)
    host_ms: list[float] = field(default_factory=list)
    valid: list[bool] = field(default_factory=list)

    def take(self, data: bytes, received_ns: int) -> None:
        """Add a message that arrived at `received_ns` of the monotonic clock."""
        event = read_event(data)
        message = content(event)
        execution_ms = 1e3 * message.modelExecutionTime
        self.frame_ids.append(message.frameId)
        self.execution_ms.append(execution_ms)
        self.host_ms.append((received_ns - message.timestampEof) / 1e6 - execution_ms)
        self.valid.append(event.valid)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process holds: resident memory in MiB, open file descriptors."""

    rss_mib: float
    fds: int


def usage_of(pid: int) -> Usage:
    """Return the memory and descriptors of a process (Linux: /proc)."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return Usage(int(line.split()[1]) / 1024, len(list(Path(f"/proc/{pid}/fd").iterdir())))


def run(args: argparse.Namespace) -> int:
    """Measure and print.

    Raises:
        UsageError: the arguments cannot work. ArtifactError, ArtifactMismatchError: not a driving
            artifact for that camera. ProcessError: a process ended. ToolError: nothing arrived.
    """
    if args.model is None or args.path:
        raise UsageError("--daemon: expected the artifact as --model driving.pkl and no other file")
    if not (math.isfinite(args.daemon) and args.daemon >= 1):
        raise UsageError(f"--daemon: expected 1 second or more, found {args.daemon:g}")
    size = _camera_size(args.model, args.camera or DEFAULT_CAMERA)
    result = measure(args.model, size, args.daemon, args.device)
    if args.json:
        print_json(result)
    else:
        _print_result(result)
    return 0


def _camera_size(model: Path, wanted: str) -> tuple[int, int]:
    """Return the camera to imitate, which the artifact takes."""
    artifact = read_driving_artifact(model)
    camera = parse_camera(wanted)
    check_frame(model, artifact, nv12_format(camera.width, camera.height))
    return camera.width, camera.height


def measure(
    model: Path, size: tuple[int, int], seconds: float, device: str | None
) -> dict[str, Any]:
    """Run camera and daemon for some time; return the object of ``--json``.

    Args:
        model: driving artifact.
        size: (width, height) of the cameras; the artifact takes their frames.
        seconds: of the part that counts.
        device: as for ``modeld run``.

    Raises:
        ProcessError: a process ended or did not begin. ToolError: no message arrived.
    """
    frames = max(1, round(seconds * RATE_HZ))
    with tempfile.TemporaryDirectory(prefix="modeld-bench-") as directory:
        bus, server = f"ipc://{directory}", f"bench-{os.getpid()}"
        config = Path(directory) / "bench.toml"
        config.write_text(_camera_config(size), encoding="utf-8")
        serve = ["--server", server, "--bus", bus, "--size", str(size[0]), str(size[1])]
        serve += ["--frames", str(frames), "--rate-hz", str(RATE_HZ)]
        work = ["run", "--model", str(model), "--demo", "--config", str(config)]
        work += ["--bus", bus, "--camera-server", server]
        work += ["--device", device] if device else []
        transport = ZmqTransport(bus)
        try:
            with (
                Child("camera", "tools.lib.bench_camera", serve) as camera,
                Child("daemon", "tools.cli", work) as daemon,
            ):
                subscriber = transport.subscriber("modelV2")
                _await_valid(transport, subscriber, [camera, daemon])
                before = usage_of(daemon.pid)
                camera.write_line("count")
                received, report = _receive(transport, subscriber, camera, daemon)
                after = usage_of(daemon.pid)
                for child in (daemon, camera):
                    code = child.stop()
                    if code != 0:
                        raise ProcessError(
                            f"{child.name}: expected exit code 0 after SIGTERM, found {code}"
                        )
        finally:
            transport.close()
    return _result(received, report, before, after)


def _camera_config(size: tuple[int, int]) -> str:
    width, height = size
    return "".join(
        f"[camera.{name}]\nwidth = {width}\nheight = {height}\nfocal_px = {width * focal:.1f}\n"
        for name, focal in FOCAL_PER_WIDTH.items()
    )


def _await_valid(
    transport: ZmqTransport, subscriber: Subscriber, children: Sequence[Child]
) -> None:
    """Wait for the daemon's first valid message, and a little longer."""
    deadline = time.monotonic() + START_TIMEOUT_S
    settled = math.inf
    while time.monotonic() < min(deadline, settled):
        for child in children:
            child.check_running()
        transport.wait([subscriber], 100)
        while (data := subscriber.receive()) is not None:
            if settled == math.inf and read_event(data).valid:
                settled = time.monotonic() + SETTLE_S
    if settled == math.inf:
        raise ProcessError(
            f"daemon: expected a valid modelV2 within {START_TIMEOUT_S:g} s, found none; run it by "
            "hand with -v: modeld run --model ... --demo -v"
        )


def _receive(
    transport: ZmqTransport, subscriber: Subscriber, camera: Child, daemon: Child
) -> tuple[Received, Mapping[str, Any]]:
    """Take messages until the camera has sent its last frame and the answer had time to come."""
    received = Received()
    report: Mapping[str, Any] | None = None
    end = math.inf
    while time.monotonic() < end:
        if not transport.wait([subscriber], 50):
            daemon.check_running()
        while (data := subscriber.receive()) is not None:
            received.take(data, time.monotonic_ns())
        line = camera.read_line(timeout_s=0.0) if report is None else None
        if line is not None:
            report = json.loads(line)
            end = time.monotonic() + LAST_MESSAGE_S
    assert report is not None
    return received, report


def _result(
    received: Received, report: Mapping[str, Any], before: Usage, after: Usage
) -> dict[str, Any]:
    ids = np.array(received.frame_ids, np.int64)
    counted = (ids >= report["first_frame"]) & (ids <= report["last_frame"])
    frames = report["last_frame"] - report["first_frame"] + 1
    published = int(np.unique(ids[counted]).size)
    if published == 0:
        raise ToolError(
            f"daemon: expected modelV2 about {frames} frames, found none; is the machine "
            "overloaded? run it by hand with -v: modeld run --model ... --demo -v"
        )
    execution_ms = np.array(received.execution_ms)[counted]
    host_ms = np.array(received.host_ms)[counted]
    return {
        "frames": frames,
        "published": published,
        "dropped": frames - published,
        "valid": int(np.array(received.valid)[counted].sum()),
        "rate_hz": RATE_HZ,
        "exec_ms_p50": float(np.percentile(execution_ms, 50)),
        "exec_ms_p99": float(np.percentile(execution_ms, 99)),
        "exec_ms_max": float(execution_ms.max()),
        "host_ms_p50": float(np.percentile(host_ms, 50)),
        "host_ms_p99": float(np.percentile(host_ms, 99)),
        "host_ms_max": float(host_ms.max()),
        "rss_growth_mib": after.rss_mib - before.rss_mib,
        "rss_mib": after.rss_mib,
        "fds_growth": after.fds - before.fds,
        "source_late_ms_p99": report["late_ms_p99"],
        "source_late_ms_max": report["late_ms_max"],
    }


def _print_result(result: Mapping[str, Any]) -> None:
    print(
        f"{count_text(result['frames'], 'frame')} at {result['rate_hz']:g} Hz: "
        f"{result['published']} modelV2, {result['dropped']} dropped, {result['valid']} valid"
    )
    for name, text in (("exec", "model"), ("host", "all the rest, to arrival")):
        values = ", ".join(f"{result[f'{name}_ms_{part}']:.2f} {part}" for part in PARTS)
        print(f"  {name} ms  {values}  ({text})")
    print(
        f"  daemon   {result['rss_mib']:.0f} MiB resident ({result['rss_growth_mib']:+z.1f}), "
        f"descriptors {result['fds_growth']:+d}"
    )
    print(
        f"  source   at most {result['source_late_ms_max']:.1f} ms late, "
        f"{result['source_late_ms_p99']:.1f} p99"
    )
