"""``modeld bench --bus``: measures the latency of messages and frames between two processes.

``zmq_ipc`` (ZeroMQ on a unix socket) and ``msgq`` (rings in shared memory) are the two transports
of ``cereal``. Each has these metrics:

- ``p50_us``, ``p99_us``: time from just before ``send`` to the return of ``receive`` in the other
  process, which slept in between. 2000 messages of the size of modelV2 are sent 5 ms apart.
- ``near``: the same 1 ms apart, so that processors and caches stay awake.
- ``msgs_per_s``: rate of bursts of 500 messages, from the first ``send`` to the last ``receive``,
  median of 40 bursts. A burst fits in the queues, which drop messages when they are full.
- ``lost``: number of messages that did not arrive.
- ``steady``: 10 000 messages of 256 bytes per second, for ``--seconds``, to a reader that keeps up;
  ``stalled``: the same to a reader that never reads. Both have the duration of ``send`` and the
  growth of the sending process.
- ``idle_cpu_percent``, with ``--model``: share of a core that a daemon uses for 10 s while its
  cameras exist but send nothing. With ``msgq`` the cameras are VisionIPC's.

``frame_handover_us`` is the median time from ``publish`` of a frame ring to the return of
``receive`` in a waiting reader; ``vision_ipc_us`` is the same for VisionIPC. The picture is not
copied.

Both processes use CLOCK_MONOTONIC, so one-way times need no round trip.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cereal.cameras import open_cameras
from cereal.frames import FrameRingWriter, nv12_format
from cereal.msgq import wake
from cereal.visionipc.server import VisionIpcServer
from modeld.health.reporter import HEALTH_SERVICES
from modeld.health.snapshot import FigureReader
from tools.bench.publisher import (
    BUFFERS,
    FRAME_SIZE,
    MESSAGE_BYTES,
    PACE_NS,
    STACK,
    STAMP,
    STEADY_NS,
    STREAM,
    open_bus,
)
from tools.errors import ToolError
from tools.lib.json_output import print_json
from tools.lib.processes import Child, ProcessError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from cereal.frames import FrameSource
    from cereal.transport.base import Subscriber

# The first one is for latency and bursts, the second one for a steady load.
LARGE, SMALL = SERVICES = ("modelV2", "carState")
PACED = 2000
BURSTS = 40
BURST = 500  # half the default length of a ZeroMQ queue, so that no message is dropped
FRAMES = 1000
SECONDS = 3.0
START_TIMEOUT_S = 30.0
# Duration of the measurement of an idle daemon.
IDLE_S = 10.0
STREAMS = ("road", "wideRoad")
SERVICE = HEALTH_SERVICES["driving"]
HEALTH_TIMEOUT_S = 60.0
# Time from the daemon's first health message until it is idle.
SETTLE_S = 2.0
# Messages in flight arrive within this time after the sender is done.
DRAIN_S = 0.5


def run(args: argparse.Namespace) -> int:
    """Measure, print the result and return exit code 0.

    Raises:
        ProcessError: the sender ended.
        ToolError: no message arrived.
    """
    # Rings wake a reader with a signal, which would end a process that has not blocked it.
    wake.block()
    result = measure(args.seconds, args.model)
    if args.json:
        print_json(result)
    else:
        _print_result(result)
    return 0


def measure(
    seconds: float | None = None,
    model: Path | None = None,
    paced: int = PACED,
    bursts: int = BURSTS,
    frames: int = FRAMES,
) -> dict[str, Any]:
    """Start the sending process, measure, and return the object of ``--json``.

    `seconds` is the duration of the steady messages. `model` is the driving artifact of the idle
    daemon; without it `idle_cpu_percent` is not measured. `paced`, `bursts` and `frames` are the
    numbers of messages, bursts and frames.

    Raises:
        ProcessError: the sender ended or did not respond.
        ToolError: no message arrived.
    """
    steady = int((SECONDS if seconds is None else seconds) * 1e9 / STEADY_NS)
    with ExitStack() as exits:
        directory = exits.enter_context(tempfile.TemporaryDirectory(prefix="modeld-bench-"))
        prefix = f"bench-{os.getpid()}"
        rings = STACK.queue_path(LARGE, prefix).parent
        # The publisher of a ring expects the directory of its prefix.
        rings.mkdir()
        exits.callback(shutil.rmtree, rings)
        buses = {"zmq_ipc": f"ipc://{directory}", "msgq": f"msgq:{prefix}"}
        result: dict[str, Any] = {
            name: _measure_transport(bus, paced, bursts, steady) for name, bus in buses.items()
        }
        ring_us, vision_us = _measure_frames(buses["msgq"], prefix, frames)
        if model is not None:
            for name, ring_prefix in (("zmq_ipc", ""), ("msgq", prefix)):
                idle = idle_cpu_percent(model, buses[name], ring_prefix, IDLE_S)
                result[name]["idle_cpu_percent"] = idle
    return result | {
        "frame_handover_us": float(np.median(ring_us)),
        "frame_handover_us_p99": float(np.percentile(ring_us, 99)),
        "vision_ipc_us": float(np.median(vision_us)),
        "vision_ipc_us_p99": float(np.percentile(vision_us, 99)),
        "message_bytes": MESSAGE_BYTES,
    }


def _sender(bus: str) -> Child:
    arguments = ["--server", f"bench-{os.getpid()}", "--bus", bus, "--services", *SERVICES]
    return Child("sender", "tools.bench.publisher", arguments)


def _measure_transport(bus: str, paced: int, bursts: int, steady: int) -> dict[str, Any]:
    transport, memory = open_bus(bus), FigureReader()
    try:
        with _sender(bus) as sender:
            large, small = (transport.subscriber(name) for name in SERVICES)
            for subscriber in (large, small):
                _await_probe(subscriber, sender)
            times_ns, _ = _collect(sender, f"paced {paced}", lambda: _take(large), paced)
            near_ns, _ = _collect(sender, f"near {paced}", lambda: _take(large), paced)
            rates, lost = [], 2 * paced - len(times_ns) - len(near_ns)
            for _ in range(bursts):
                burst_ns, _ = _collect(sender, f"burst {BURST}", lambda: _take(large), BURST)
                rates.append(len(burst_ns) / (burst_ns[-1, 1] - burst_ns[0, 0]) * 1e9)
                lost += BURST - len(burst_ns)
            command = f"steady {steady}"
            steady_ns, steady_report = _collect(sender, command, lambda: _take(small), steady)
            before = memory.read().memory_bytes
            stalled = _run_command(sender, command)
            grown = (memory.read().memory_bytes - before) / (1 << 20)
    finally:
        transport.close()
        memory.close()
    ages_us = _ages_us(times_ns)
    return {
        "p50_us": float(np.percentile(ages_us, 50)),
        "p99_us": float(np.percentile(ages_us, 99)),
        "near": {
            "p50_us": float(np.percentile(_ages_us(near_ns), 50)),
            "p99_us": float(np.percentile(_ages_us(near_ns), 99)),
        },
        "msgs_per_s": float(np.median(rates)),
        "lost": lost,
        "steady": {
            "messages": steady,
            "lost": steady - len(steady_ns),
            "p99_us": float(np.percentile(_ages_us(steady_ns), 99)),
            **steady_report,
        },
        "stalled": {**stalled, "reader_grown_mib": grown},
    }


def _measure_frames(
    bus: str, prefix: str, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ages of received frames in µs: from a frame ring, and by VisionIPC."""
    ages_us = []
    with _sender(bus) as sender:
        for command, scheme in (("frames", ""), ("vision", "visionipc:")):
            # The sender answers when its cameras exist, and starts on "go".
            sender.write_line(f"{command} {count}")
            _read_reply(sender)
            server = open_cameras(f"{scheme}bench-{os.getpid()}", STACK, prefix=prefix)
            reader = server.reader(STREAM, conflate=False)
            times_ns, _ = _collect(sender, "go", lambda: _take_frame(reader), count)  # noqa: B023
            ages_us.append(_ages_us(times_ns))
            reader.close()
            server.close()
    return ages_us[0], ages_us[1]


def _await_probe(subscriber: Subscriber, sender: Child) -> None:
    """Wait for a probe, a message with stamp 0 that the sender repeats until the first command."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if subscriber.receive(100) is not None:
            return
        sender.check_running()
    raise _not_heard(sender)


def _not_heard(sender: Child) -> ProcessError:
    return ProcessError(
        f"{sender.name}: expected a response within {START_TIMEOUT_S:g} s, found nothing; is "
        "the machine overloaded?"
    )


def _read_reply(sender: Child) -> str:
    line = sender.read_line(START_TIMEOUT_S)
    if line is None:
        raise _not_heard(sender)
    return line


def _run_command(sender: Child, command: str) -> dict[str, Any]:
    """Send a command to the sender; return its report."""
    sender.write_line(command)
    while (line := sender.read_line(timeout_s=1.0)) is None:
        sender.check_running()
    return _report_of(line)


def _report_of(line: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(line.removeprefix("done "))
    return report


def _collect(
    sender: Child, command: str, take: Callable[[], tuple[int, int] | None], count: int
) -> tuple[NDArray[np.int64], dict[str, Any]]:
    """Send a command and collect pairs (ns sent, ns received) from `take`; return the report, too.

    Collection ends after `count` pairs, or when the sender is done and no more arrive.
    """
    sender.write_line(command)
    pairs: list[tuple[int, int]] = []
    end: float | None = None
    line: str | None = None
    while len(pairs) < count and (end is None or time.monotonic() < end):
        pair = take()
        if pair is not None:
            pairs.append(pair)
        elif line is None:
            # No message is waiting: the sender may be done.
            line = sender.read_line(timeout_s=0.0)
            end = None if line is None else time.monotonic() + DRAIN_S
    while line is None:
        line = sender.read_line(timeout_s=1.0)
        sender.check_running()
    if len(pairs) < 2:
        raise ToolError(f"bus: expected {count} messages or frames, found {len(pairs)}")
    return np.array(pairs, np.int64), _report_of(line)


def _ages_us(times_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    return (times_ns[:, 1] - times_ns[:, 0]) / 1e3


def _take(subscriber: Subscriber) -> tuple[int, int] | None:
    """Return when the next message was sent and received, ns; None if none arrives in 50 ms."""
    data = subscriber.receive(50)
    now_ns = time.monotonic_ns()
    if data is None:
        return None
    stamp_ns, _ = STAMP.unpack_from(data)
    return (stamp_ns, now_ns) if stamp_ns else None


def _take_frame(reader: FrameSource) -> tuple[int, int] | None:
    """Return when the next frame was published and received, ns; None if none arrives in 50 ms."""
    frame = reader.receive(50)
    return None if frame is None else (frame.timestamp_eof_ns, time.monotonic_ns())


def idle_cpu_percent(model: Path, bus: str, prefix: str, seconds: float) -> float:
    """Return the CPU use of a daemon whose cameras send nothing, in percent of one core.

    `model` is the driving artifact and `bus` the address of the bus. `prefix` is the prefix of the
    message rings, or "" for ZeroMQ. With message rings the cameras are VisionIPC's. The CPU time is
    measured over `seconds`.

    Raises:
        ProcessError: the daemon ended or did not report its health.
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


def _print_result(result: Mapping[str, Any]) -> None:
    for name in ("zmq_ipc", "msgq"):
        one = result[name]
        steady, stalled = one["steady"], one["stalled"]
        print(
            f"{name:9} {one['p50_us']:.0f} us p50, {one['p99_us']:.0f} us p99 "
            f"({result['message_bytes']} bytes, {PACE_NS / 1e6:g} ms apart), "
            f"{one['near']['p50_us']:.0f} and {one['near']['p99_us']:.0f} us 1 ms apart; "
            f"{one['msgs_per_s']:.0f} messages/s back to back, {one['lost']} lost\n"
            f"          {steady['messages']} messages at {1e9 / STEADY_NS:.0f} a second: "
            f"{steady['lost']} lost, {steady['p99_us']:.0f} us p99; send "
            f"{steady['send_p50_us']:.0f} us p50, {steady['send_p99_us']:.0f} us p99\n"
            f"          to a reader that stalls: send {stalled['send_p50_us']:.0f} us p50, "
            f"{stalled['send_p99_us']:.0f} us p99; grown by {stalled['grown_mib']:.1f} MiB, the "
            f"reader by {stalled['reader_grown_mib']:.1f} MiB"
        )
        if "idle_cpu_percent" in one:
            print(f"          idle daemon: {one['idle_cpu_percent']:.2f} % of a core")
    for name, place in (("frame_handover", "ring"), ("vision_ipc", "VisionIPC")):
        print(
            f"frames    {result[f'{name}_us']:.0f} us p50, {result[f'{name}_us_p99']:.0f} us p99 "
            f"by {place}"
        )
