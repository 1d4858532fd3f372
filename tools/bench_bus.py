"""``modeld bench --bus``: how long messages and frames take from one process to another.

- ``zmq_ipc``: messages of the size of modelV2 through ``cereal``'s ZeroMQ transport on a unix
  socket. Latency: from just before ``send`` in one process to ``receive`` returned in another that
  slept in between (2000 messages, 5 ms apart). Rate: bursts of 500 messages, which the queues hold
  (a PUB socket drops what they do not), from the first ``send`` to the last ``receive``; the median
  of 40 bursts. ``lost`` counts what did not arrive.
- ``msgq``: null, because there is no such transport here; ``msgq_reason`` says so.
- ``frame_handover_us``: from ``publish`` of a frame ring to ``receive`` returned in a reader that
  waited for it, median; the picture itself is not copied.

Both processes use CLOCK_MONOTONIC, so one-way times need no round trip.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from cereal.frames import FrameRingReader
from cereal.transport import ZmqTransport
from tools.errors import ToolError, UsageError
from tools.lib.bench_publisher import MESSAGE_BYTES, PACE_NS, STAMP, STREAM
from tools.lib.json_output import print_json
from tools.lib.processes import Child, ProcessError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from cereal.transport.base import Subscriber

SERVICE = "modelV2"
MSGQ_REASON = "no msgq transport in this version; see the README"
PACED = 2000
BURSTS = 40
BURST = 500  # half of what a ZeroMQ queue holds by default: nothing has to be dropped
FRAMES = 1000
START_TIMEOUT_S = 30.0
# After the sender is done, what is still in flight arrives within this.
DRAIN_S = 0.5


def run(args: argparse.Namespace) -> int:
    """Measure and print.

    Raises:
        UsageError: a file was named. ProcessError: the sender ended. ToolError: nothing arrived.
    """
    if args.path:
        raise UsageError(f"--bus: expected no file, found {args.path[0]}")
    result = measure()
    if args.json:
        print_json(result)
    else:
        _print_result(result)
    return 0


def measure(paced: int = PACED, bursts: int = BURSTS, frames: int = FRAMES) -> dict[str, Any]:
    """Start the sending process and take everything in; return the object of ``--json``.

    Args:
        paced: messages for the latency.
        bursts: of messages, for the rate.
        frames: frames for the handover.

    Raises:
        ProcessError: the sender ended or was not heard. ToolError: nothing arrived.
    """
    with tempfile.TemporaryDirectory(prefix="modeld-bench-") as directory:
        bus, server = f"ipc://{directory}", f"bench-{os.getpid()}"
        send = ["--server", server, "--bus", bus, "--service", SERVICE]
        transport = ZmqTransport(bus)
        try:
            with Child("sender", "tools.lib.bench_publisher", send) as sender:
                subscriber = transport.subscriber(SERVICE)
                _await_probe(subscriber, sender)
                zmq = _measure_messages(subscriber, sender, paced, bursts)
                reader = FrameRingReader(server, STREAM, conflate=False)
                sender.write_line(f"frames {frames}")
                ages_us = _ages_us(_collect(sender, lambda: _take_frame(reader), frames))
                reader.close()
        finally:
            transport.close()
    return {
        "zmq_ipc": zmq,
        "msgq": None,
        "msgq_reason": MSGQ_REASON,
        "frame_handover_us": float(np.median(ages_us)),
        "frame_handover_us_p99": float(np.percentile(ages_us, 99)),
        "message_bytes": MESSAGE_BYTES,
    }


def _measure_messages(
    subscriber: Subscriber, sender: Child, paced: int, bursts: int
) -> dict[str, Any]:
    sender.write_line(f"paced {paced}")
    ages_us = _ages_us(_collect(sender, lambda: _take_message(subscriber), paced))
    rates, lost = [], 0
    for _ in range(bursts):
        sender.write_line(f"burst {BURST}")
        times_ns = _collect(sender, lambda: _take_message(subscriber), BURST)
        rates.append(len(times_ns) / (times_ns[-1, 1] - times_ns[0, 0]) * 1e9)
        lost += BURST - len(times_ns)
    return {
        "p50_us": float(np.percentile(ages_us, 50)),
        "p99_us": float(np.percentile(ages_us, 99)),
        "msgs_per_s": float(np.median(rates)),
        "lost": lost,
    }


def _await_probe(subscriber: Subscriber, sender: Child) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if subscriber.receive(100) is not None:
            return
        sender.check_running()
    raise ProcessError(
        f"sender: expected a message within {START_TIMEOUT_S:g} s, found none; is the machine "
        "overloaded?"
    )


def _collect(
    sender: Child, take: Callable[[], tuple[int, int] | None], count: int
) -> NDArray[np.int64]:
    """Call `take` until it has given `count` pairs, or the sender is done and nothing comes.

    Returns:
        int64 (n, 2): when sent, when received, ns.

    Raises:
        ToolError: fewer than two arrived.
    """
    pairs: list[tuple[int, int]] = []
    end: float | None = None
    while len(pairs) < count and (end is None or time.monotonic() < end):
        pair = take()
        if pair is not None:
            pairs.append(pair)
        elif end is None and sender.read_line(timeout_s=0.0) is not None:
            end = time.monotonic() + DRAIN_S
    while end is None and sender.read_line(timeout_s=1.0) is None:
        sender.check_running()
    if len(pairs) < 2:
        raise ToolError(f"bus: expected {count} messages or frames, found {len(pairs)}")
    return np.array(pairs, np.int64)


def _ages_us(times_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    return (times_ns[:, 1] - times_ns[:, 0]) / 1e3


def _take_message(subscriber: Subscriber) -> tuple[int, int] | None:
    """Return when the next counted message was sent and received; None if none comes soon."""
    data = subscriber.receive(50)
    now_ns = time.monotonic_ns()
    if data is None:
        return None
    (stamp_ns,) = STAMP.unpack_from(data)
    return (stamp_ns, now_ns) if stamp_ns else None


def _take_frame(reader: FrameRingReader) -> tuple[int, int] | None:
    """Return when the next frame was published and received; None if none comes soon."""
    frame = reader.receive(50)
    return None if frame is None else (frame.timestamp_eof_ns, time.monotonic_ns())


def _print_result(result: Mapping[str, Any]) -> None:
    zmq = result["zmq_ipc"]
    print(
        f"zmq_ipc   {zmq['p50_us']:.0f} us p50, {zmq['p99_us']:.0f} us p99 "
        f"({result['message_bytes']} bytes, {PACE_NS / 1e6:g} ms apart); "
        f"{zmq['msgs_per_s']:.0f} messages/s back to back, {zmq['lost']} lost"
    )
    print(f"msgq      not measured: {result['msgq_reason']}")
    print(
        f"frames    {result['frame_handover_us']:.0f} us p50, "
        f"{result['frame_handover_us_p99']:.0f} us p99 from ring to reader"
    )
