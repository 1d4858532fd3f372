"""``modeld bench --daemon``: measures the daemon process on a live bus, with cameras at 20 Hz.

The result has these metrics of the measured frames:

- ``frames``: number of frames that the camera process published; ``published``: number of modelV2
  messages for them that arrived here; ``dropped``: the difference.
- ``exec_ms``: ``modelExecutionTime`` of modelV2, from inputs ready to outputs parsed.
- ``host_ms``: the rest of the latency. It starts just before the road frame is published, when the
  wide frame and the car's messages are already published, and ends when modelV2 arrives in this
  process; ``exec_ms`` is subtracted. It includes both wake-ups, pairing of frames, reading
  messages, filling inputs, sending and the transport. ``--host`` measures the daemon's own part.
- ``rss_growth_mib``, ``fds_growth``: growth of the daemon's resident memory and file descriptors
  from the first to the last frame.
- ``source_late_ms``: delay with which the camera process published its frames. More than a few
  milliseconds mean that the machine was busy with other work.

With ``--monitoring`` a second daemon runs driver monitoring, fed by a driver camera half a period
later. ``monitoring`` then has the same metrics for driverStateV2, except ``host_ms``: that message
lacks the frame's time.

``--realtime`` runs the daemons with priority, locked memory and CPUs kept awake (ADR 0094).
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cereal.schema import content, read_event
from cereal.transport import ZmqTransport
from runtime.format.artifact import read_artifact
from runtime.texts import count_text
from tools.commands.compile import parse_camera
from tools.errors import ArtifactMismatchError, ToolError, UsageError
from tools.lib.json_output import print_json
from tools.lib.processes import Child, ProcessError
from tools.playback.model import check_frame, frame_capacity, read_driving_artifact
from tools.timing.program_inputs import fitting_format

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from cereal.transport.base import Subscriber
    from tools.lib.processes import Child


@dataclass(slots=True)
class Received:
    """The values of the received messages; each list has one value per message."""

    frame_ids: list[int] = field(default_factory=list)
    execution_ms: list[float] = field(default_factory=list)
    host_ms: list[float] = field(default_factory=list)  # empty if messages lack the frame's time
    valid: list[bool] = field(default_factory=list)

    def take(self, data: bytes, received_ns: int) -> None:
        """Add a message that arrived at `received_ns` on the monotonic clock."""
        event = read_event(data)
        message = content(event)
        execution_ms = 1e3 * message.modelExecutionTime
        self.frame_ids.append(message.frameId)
        self.execution_ms.append(execution_ms)
        if "timestampEof" in message.schema.fields:
            self.host_ms.append((received_ns - message.timestampEof) / 1e6 - execution_ms)
        self.valid.append(event.valid)


@dataclass(slots=True)
class WatchedDaemon:
    """A daemon, the service that it publishes once per frame, and the received messages."""

    child: Child
    service: str
    subscriber: Subscriber
    received: Received = field(default_factory=Received)

    def take_messages(self) -> None:
        """Add all messages that have arrived."""
        while (data := self.subscriber.receive()) is not None:
            self.received.take(data, time.monotonic_ns())


@dataclass(frozen=True, slots=True)
class Usage:
    """The memory and file descriptors of a process."""

    rss_mib: float  # resident memory
    fds: int  # number of open file descriptors


def usage_of(pid: int) -> Usage:
    """Return the memory and descriptors of a process (Linux: /proc)."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return Usage(int(line.split()[1]) / 1024, len(list(Path(f"/proc/{pid}/fd").iterdir())))


RATE_HZ = 20.0
START_TIMEOUT_S = 120.0  # for loading, and building kernels if the artifact has no binaries
SETTLE_S = 2.0  # time after the first valid message for caches, clocks and connections
LAST_MESSAGE_S = 1.0
REALTIME = ("--priority", "50", "--lock-memory", "--keep-awake")
PARTS = ("p50", "p99", "max")
# Focal length / picture width of plausible cameras: 2648 and 567 px of 1928.
FOCAL_PER_WIDTH = {"road": 1.37, "wide": 0.29}


@dataclass(frozen=True, slots=True)
class Bench:
    """The settings of a measurement."""

    model: Path  # driving artifact
    size: tuple[int, int]  # (width, height) of all cameras
    seconds: float
    device: str | None = None
    monitoring: Path | None = None  # driver monitoring artifact
    realtime: bool = False

    @property
    def frames(self) -> int:
        """Number of measured frames."""
        return max(1, round(self.seconds * RATE_HZ))


def run(args: argparse.Namespace) -> int:
    """Measure, print the result and return exit code 0.

    Raises:
        UsageError: there is no `--model`, or the camera size is invalid.
        ArtifactError, ArtifactMismatchError: the file is no driving artifact for that camera.
        ProcessError: a process ended.
        ToolError: no message arrived.
    """
    if args.model is None:
        raise UsageError("--daemon: expected the artifact as --model driving.pkl, found none")
    size = camera_size(args.model, args.camera)
    if args.monitoring is not None:
        _check_monitoring(args.monitoring)
    bench = Bench(args.model, size, args.daemon, args.device, args.monitoring, args.realtime)
    result = measure(bench)
    if args.json:
        print_json(result)
    else:
        _print_result(result)
    return 0


def camera_size(model: Path, wanted: str | None) -> tuple[int, int]:
    """Return the camera's (width, height): `wanted` as WxH, else that of `fitting_format`."""
    artifact = read_driving_artifact(model)
    if wanted is None:
        layout = fitting_format(frame_capacity(artifact))
    else:
        layout = parse_camera(wanted)
        check_frame(model, artifact, layout)
    return layout.width, layout.height


def _check_monitoring(path: Path) -> None:
    kind = read_artifact(path).manifest.kind
    if kind != "monitoring":
        raise ArtifactMismatchError(
            f"{path}: expected a driver monitoring artifact, found one of kind {kind!r}; compile "
            "dmonitoring.onnx"
        )


def measure(bench: Bench) -> dict[str, Any]:
    """Run camera and daemons for the given time; return the object of ``--json``.

    Raises:
        ProcessError: a process ended or did not start.
        ToolError: no message arrived.
    """
    with tempfile.TemporaryDirectory(prefix="modeld-bench-") as directory, ExitStack() as stack:
        bus, server = f"ipc://{directory}", f"bench-{os.getpid()}"
        config = Path(directory) / "bench.toml"
        config.write_text(camera_config(bench.size), encoding="utf-8")
        transport = ZmqTransport(bus)
        stack.callback(transport.close)
        serve = ["--server", server, "--bus", bus, "--size", *map(str, bench.size)]
        serve += ["--frames", str(bench.frames), "--rate-hz", str(RATE_HZ)]
        serve += [] if bench.monitoring is None else ["--driver"]
        camera = stack.enter_context(Child("camera", "tools.bench.camera", serve))
        work = ["--config", str(config), "--bus", bus, "--camera-server", server]
        work += ["--device", bench.device] if bench.device else []
        work += REALTIME if bench.realtime else []

        def watched(name: str, service: str, *options: str) -> WatchedDaemon:
            child = Child(name, "tools.cli", ["run", *options, *work])
            return WatchedDaemon(stack.enter_context(child), service, transport.subscriber(service))

        daemons = [watched("daemon", "modelV2", "--model", str(bench.model), "--demo")]
        if bench.monitoring is not None:
            monitoring = str(bench.monitoring)
            daemons.append(watched("monitoring", "driverStateV2", "--model", monitoring))
        _await_valid(transport, daemons, camera)
        before = [usage_of(one.child.pid) for one in daemons]
        camera.write_line("count")
        report = _receive(transport, daemons, camera)
        figures = [_figures(d, report, old) for d, old in zip(daemons, before, strict=True)]
        for child in (*(one.child for one in daemons), camera):
            code = child.stop()
            if code != 0:
                raise ProcessError(
                    f"{child.name}: expected exit code 0 after SIGTERM, found {code}"
                )
    result = figures[0]
    result["source_late_ms_p99"] = report["late_ms_p99"]
    result["source_late_ms_max"] = report["late_ms_max"]
    if bench.monitoring is not None:
        result["monitoring"] = figures[1]
    return result


def camera_config(size: tuple[int, int]) -> str:
    """Return the TOML tables of two plausible cameras with the given (width, height)."""
    width, height = size
    return "".join(
        f"[camera.{name}]\nwidth = {width}\nheight = {height}\nfocal_px = {width * focal:.1f}\n"
        for name, focal in FOCAL_PER_WIDTH.items()
    )


def _await_valid(transport: ZmqTransport, daemons: Sequence[WatchedDaemon], camera: Child) -> None:
    """Wait for the first valid message of each daemon, then `SETTLE_S` more seconds."""
    deadline = time.monotonic() + START_TIMEOUT_S
    settled = math.inf
    while time.monotonic() < min(deadline, settled):
        for child in (camera, *(one.child for one in daemons)):
            child.check_running()
        _take_messages(transport, daemons, 100)
        if settled == math.inf and all(any(one.received.valid) for one in daemons):
            settled = time.monotonic() + SETTLE_S
    if settled == math.inf:
        silent = next(one for one in daemons if not any(one.received.valid))
        raise ProcessError(
            f"{silent.child.name}: expected a valid {silent.service} within {START_TIMEOUT_S:g} s, "
            "found none; run it by hand with -v: modeld run --model ... --demo -v"
        )


def _take_messages(
    transport: ZmqTransport, daemons: Sequence[WatchedDaemon], timeout_ms: int
) -> bool:
    """Wait for messages and add them; return whether there were any."""
    some = bool(transport.wait([one.subscriber for one in daemons], timeout_ms))
    for one in daemons:
        one.take_messages()
    return some


def _receive(
    transport: ZmqTransport, daemons: Sequence[WatchedDaemon], camera: Child
) -> Mapping[str, Any]:
    """Collect messages until `LAST_MESSAGE_S` after the camera's last frame; return its report."""
    report: Mapping[str, Any] | None = None
    end = math.inf
    while time.monotonic() < end:
        if not _take_messages(transport, daemons, 50):
            for one in daemons:
                one.child.check_running()
        line = camera.read_line(timeout_s=0.0) if report is None else None
        if line is not None:
            report = json.loads(line)
            end = time.monotonic() + LAST_MESSAGE_S
    assert report is not None
    return report


def _figures(daemon: WatchedDaemon, report: Mapping[str, Any], before: Usage) -> dict[str, Any]:
    """Return the metrics of one daemon for the measured frames."""
    received, after = daemon.received, usage_of(daemon.child.pid)
    ids = np.array(received.frame_ids, np.int64)
    counted = (ids >= report["first_frame"]) & (ids <= report["last_frame"])
    frames = report["last_frame"] - report["first_frame"] + 1
    published = int(np.unique(ids[counted]).size)
    if published == 0:
        raise ToolError(
            f"{daemon.child.name}: expected {daemon.service} about {frames} frames, found none; is "
            "the machine overloaded? run it by hand with -v: modeld run --model ... --demo -v"
        )
    times = {"exec_ms": received.execution_ms, "host_ms": received.host_ms}
    found: dict[str, Any] = {
        "frames": frames,
        "published": published,
        "dropped": frames - published,
        "valid": int(np.array(received.valid)[counted].sum()),
        "rate_hz": RATE_HZ,
    }
    for name, values_ms in times.items():
        if not values_ms:
            continue
        part_ms = np.array(values_ms)[counted]
        found |= {
            f"{name}_p50": float(np.percentile(part_ms, 50)),
            f"{name}_p99": float(np.percentile(part_ms, 99)),
            f"{name}_max": float(part_ms.max()),
        }
    return found | {
        "rss_growth_mib": after.rss_mib - before.rss_mib,
        "rss_mib": after.rss_mib,
        "fds_growth": after.fds - before.fds,
    }


def _print_result(result: Mapping[str, Any]) -> None:
    _print_daemon(result, "modelV2")
    if "monitoring" in result:
        _print_daemon(result["monitoring"], "driverStateV2")
    print(
        f"  source   at most {result['source_late_ms_max']:.1f} ms late, "
        f"{result['source_late_ms_p99']:.1f} p99"
    )


def _print_daemon(result: Mapping[str, Any], service: str) -> None:
    print(
        f"{count_text(result['frames'], 'frame')} at {result['rate_hz']:g} Hz: "
        f"{result['published']} {service}, {result['dropped']} dropped, {result['valid']} valid"
    )
    for name, text in (("exec", "model"), ("host", "the rest of the latency")):
        if f"{name}_ms_p50" in result:
            values = ", ".join(f"{result[f'{name}_ms_{part}']:.2f} {part}" for part in PARTS)
            print(f"  {name} ms  {values}  ({text})")
    print(
        f"  daemon   {result['rss_mib']:.0f} MiB resident ({result['rss_growth_mib']:+z.1f}), "
        f"descriptors {result['fds_growth']:+d}"
    )
