"""Print the messages that arrive on the bus, and optionally log them.

One line for each message; SERVICE names which (the daemon's three by default). Stops after --count
messages, on SIGTERM (exit code 0) or on SIGINT (130); with --timeout, silence for that long before
the first or after any message ends it with exit code 1.

Example:
  modeld subscribe modelV2 --bus ipc:///run/modeld --every 20 --output live.rlog.zst
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

from cereal.log_writer import LogWriter
from cereal.schema import content, read_event
from cereal.services import service
from cereal.transport import ZmqTransport
from cereal.transport.base import Subscriber
from modeld.startup import StopSignals
from tools.errors import ToolError, UsageError
from tools.lib.drive_log import OUTPUT_SERVICES
from tools.lib.json_output import print_json
from tools.lib.outputs import check_outputs

# How soon a signal is noticed.
POLL_MS = 100


class SilenceError(ToolError):
    """Nothing arrived for as long as the caller was willing to wait."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("services", nargs="*", metavar="SERVICE", help="services to follow")
    parser.add_argument(
        "--bus",
        default="tcp://127.0.0.1",
        metavar="ADDRESS",
        help="tcp://HOST or ipc:///DIRECTORY (tcp://127.0.0.1)",
    )
    parser.add_argument(
        "--log-only",
        nargs="+",
        default=[],
        metavar="SERVICE",
        help="services to log without printing",
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="print each N-th (1)")
    parser.add_argument("--count", type=int, metavar="N", help="stop after N messages")
    parser.add_argument("--timeout", type=float, metavar="S", help="longest silence")
    parser.add_argument("--output", type=Path, metavar="LOG", help="event log to write")


def run(args: argparse.Namespace) -> int:
    """Follow the bus until told to stop."""
    printed = tuple(args.services) or OUTPUT_SERVICES
    for option, value in (("--every", args.every), ("--count", args.count)):
        if value is not None and value < 1:
            raise UsageError(f"{option}: expected at least 1, found {value}")
    if args.timeout is not None and not 0 < args.timeout < math.inf:
        raise UsageError(f"--timeout: expected a positive number of seconds, found {args.timeout}")
    check_outputs({"--output": args.output})
    # Unknown names must fail here: a socket for them would stay silent for ever.
    names = [service(name).name for name in dict.fromkeys((*printed, *args.log_only))]
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignals())
        log = stack.enter_context(LogWriter(args.output)) if args.output else None
        transport = ZmqTransport(args.bus)
        stack.callback(transport.close)
        subscribers = {name: transport.subscriber(name) for name in names}
        for name, data in _receive(transport, subscribers, stop, args.timeout):
            if log is not None:
                log.write(data)
            if name in printed and counts[name] % args.every == 0 and not args.json:
                print(describe(name, read_event(data)), flush=True)
            counts[name] += 1
            if sum(counts.values()) == args.count:
                break
        exit_code = stop.exit_code
    if args.json:
        output = str(args.output) if args.output else None
        print_json({"messages": dict(counts), "log": output})
    return exit_code


def describe(name: str, event: Any) -> str:
    """Return a message in one line: service, stamp, validity, and what it says most of all."""
    message = content(event)
    stamp = f"{event.logMonoTime * 1e-9:.3f} s {'valid' if event.valid else 'INVALID'}"
    details = ""
    if name == "modelV2":
        ahead = message.position
        details = (
            f"frame {message.frameId}  {1e3 * message.modelExecutionTime:.1f} ms  "
            f"drops {message.frameDropPerc:.1f} %  "
            f"in {ahead.t[-1]:.0f} s: {ahead.x[-1]:.0f} m ahead, {ahead.y[-1]:+z.1f} m right"
        )
    elif name == "drivingModelData":
        lines = message.laneLineMeta
        details = (
            f"frame {message.frameId}  curvature {message.action.desiredCurvature:+z.5f} 1/m  "
            f"lane {lines.leftY:+z.2f} .. {lines.rightY:+z.2f} m"
        )
    elif name == "cameraOdometry":
        forward, right, down = message.trans
        details = f"frame {message.frameId}  velocity {forward:z.2f} {right:+z.2f} {down:+z.2f} m/s"
    return f"{name:<16} {stamp}  {details}".rstrip()


def _receive(
    transport: ZmqTransport,
    subscribers: dict[str, Any],
    stop: StopSignals,
    timeout_s: float | None,
) -> Iterator[tuple[str, bytes]]:
    """Yield (service, bytes) as they arrive until a signal.

    Raises:
        SilenceError: nothing came for ``timeout_s``.
    """
    waiting: Sequence[Subscriber] = list(subscribers.values())
    last = monotonic()
    while not stop.event.is_set():
        if transport.wait(waiting, POLL_MS):
            last = monotonic()
        elif timeout_s is not None and monotonic() - last > timeout_s:
            raise SilenceError(
                f"bus: expected a message of {', '.join(subscribers)} within {timeout_s:g} s, "
                "found none; is the daemon running on this address?"
            )
        for name, subscriber in subscribers.items():
            while (data := subscriber.receive()) is not None:
                yield name, data


if __name__ == "__main__":
    from tools.cli import main

    sys.exit(main(["subscribe", *sys.argv[1:]]))
