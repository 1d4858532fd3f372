"""Print the messages that arrive on the bus, and optionally log them.

Prints one line per message of each SERVICE (the daemon's three by default). Stops after --count
messages, on SIGTERM (exit code 0) or on SIGINT (130). With --timeout, the command ends with exit
code 1 when no message arrives for that long. With --output, a stop before the first message also
gives exit code 1, and no log is written.

With --json each line is one JSON object: service, logMonoTime, valid and the whole message, or only
its --field values. The last line is a summary without a service: the number of messages by service,
the number left out because they are damaged or newer than the schema, and the path of the log.

Example:
  modeld subscribe modelV2 --bus ipc:///run/modeld --every 20 --output live.rlog.zst
  modeld subscribe modelV2 --json --field frameId --field action.desiredCurvature
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

from cereal.errors import MessageError
from cereal.log_writer import LogWriter
from cereal.schema import content, member_name, read_event, reading
from cereal.services import member_of, service
from cereal.transport import Transport
from cereal.transport.base import Subscriber
from modeld.health.reporter import HEALTH_SERVICES
from modeld.startup import StopSignals
from tools.describe.log import json_line, selections
from tools.errors import ToolError, UsageError
from tools.lib.json_output import print_json
from tools.lib.options import MOST_S, above, whole
from tools.messages.drive_log import OUTPUT_SERVICES
from tools.messages.message_values import Selection
from tools.service.options import add_bus_arguments, open_bus

logger = logging.getLogger(__name__)

# Longest wait before signals are checked.
POLL_MS = 100
# Interval of checks for sockets that refuse the connection.
LOOK_S = 1.0


class SilenceError(ToolError):
    """No message arrived within the timeout."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("services", nargs="*", metavar="SERVICE", help="services to follow")
    add_bus_arguments(parser)
    parser.add_argument(
        "--log-only",
        nargs="+",
        default=[],
        metavar="SERVICE",
        help="services to log without printing",
    )
    parser.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="PATH",
        help="with --json: only this field and its members, such as position.x or laneLines[1].y; "
        "may be repeated (all)",
    )
    parser.add_argument(
        "--every", type=whole("--every"), default=1, metavar="N", help="print each N-th (1)"
    )
    parser.add_argument("--count", type=whole("--count"), metavar="N", help="stop after N messages")
    parser.add_argument(
        "--timeout", type=above("--timeout", 0, MOST_S), metavar="S", help="longest silence"
    )
    parser.add_argument("--output", type=Path, metavar="LOG", help="event log to write")


def run(args: argparse.Namespace) -> int:
    """Print and log messages until a signal, --count or --timeout; return the exit code."""
    printed = tuple(args.services) or OUTPUT_SERVICES
    if args.field and not args.json:
        raise UsageError("--field needs --json")
    # Unknown names must fail here: a socket for them would never receive a message.
    names = [service(name).name for name in dict.fromkeys((*printed, *args.log_only))]
    printer = _Printer(printed, args.every, _selections(printed, args.field) if args.json else None)
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignals())
        log = stack.enter_context(LogWriter(args.output)) if args.output else None
        transport = open_bus(args)
        stack.callback(transport.close)
        subscribers = {name: transport.subscriber(name) for name in names}
        for name, data in _receive(transport, subscribers, stop, args.timeout):
            if log is not None:
                log.write(data)
            printer.take(name, data)
            if printer.counts.total() == args.count:
                break
        exit_code = stop.exit_code
        if log is not None and not printer.counts:
            # The error discards the log: an empty one would look like a success.
            raise SilenceError(
                f"bus: expected messages of {', '.join(names)} for {args.output}, found none until "
                "this was stopped, and wrote no log; modeld status shows the daemons on this bus"
            )
    if args.json:
        output = str(args.output) if args.output else None
        print_json(
            {"messages": dict(printer.counts), "damaged": printer.damaged.total(), "log": output}
        )
    elif printer.damaged:
        logger.warning(
            "not printed, since damaged or newer than the schema: %s",
            ", ".join(f"{name} {count}" for name, count in printer.damaged.items()),
        )
    return exit_code


def _selections(names: Sequence[str], fields: Sequence[str]) -> Mapping[str, Selection | None]:
    return selections(names, fields)[0] if fields else {}


class _Printer:
    """Counts messages and prints those of the services `printed`, every `every`-th one.

    `chosen` has the fields to print as JSON for each service (None or missing: all fields). If
    `chosen` is None, messages are printed as text.
    """

    def __init__(
        self,
        printed: Sequence[str],
        every: int,
        chosen: Mapping[str, Selection | None] | None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.damaged: Counter[str] = Counter()
        self._printed = frozenset(printed)
        self._every = every
        self._chosen = chosen

    def take(self, name: str, data: bytes) -> None:
        """Count a message and print it if it is due; a damaged one is counted and logged."""
        is_due = name in self._printed and self.counts[name] % self._every == 0
        self.counts[name] += 1
        if not is_due:
            return
        try:
            print(self._line(name, data), flush=True)
        except MessageError as error:
            self.damaged[name] += 1
            logger.info("%s: %s", name, error)

    def _line(self, name: str, data: bytes) -> str:
        event = read_event(data)
        if self._chosen is not None:
            # The event names its own member, which can differ from the socket's service.
            return json_line(member_name(event) or name, event, self._chosen.get(member_of(name)))
        with reading(name):
            return describe(name, event)


def describe(name: str, event: Any) -> str:
    """Return a message in one line: service, time in seconds, validity, and its main values."""
    message = content(event)
    stamp = f"{event.logMonoTime * 1e-9:.3f} s {'valid' if event.valid else 'INVALID'}"
    details = ""
    if name == "modelV2":
        ahead = message.position
        details = (
            f"frame {message.frameId}  {1e3 * message.modelExecutionTime:.1f} ms  "
            f"drops {message.frameDropPerc:.1f} %  "
            + (
                f"in {ahead.t[-1]:.0f} s: {ahead.x[-1]:.0f} m ahead, {ahead.y[-1]:+z.1f} m right"
                if len(ahead.t) and len(ahead.x) and len(ahead.y)
                else "no path"
            )
        )
    elif name == "drivingModelData":
        lines = message.laneLineMeta
        details = (
            f"frame {message.frameId}  curvature {message.action.desiredCurvature:+z.5f} 1/m  "
            f"lane {lines.leftY:+z.2f} .. {lines.rightY:+z.2f} m"
        )
    elif name == "cameraOdometry" and len(message.trans) == 3:
        forward, right, down = message.trans
        details = f"frame {message.frameId}  velocity {forward:z.2f} {right:+z.2f} {down:+z.2f} m/s"
    elif name in HEALTH_SERVICES.values():
        reasons = "; ".join(message.invalidReasons)
        details = (
            f"{message.phase}  frame {message.frameId}  {message.published} published"
            f"  {message.dropped} dropped"
            + f"  not valid: {reasons}" * bool(reasons)
            + "  FALLBACK" * message.isFallback
        )
    return f"{name:<16} {stamp}  {details}".rstrip()


def _receive(
    transport: Transport,
    subscribers: dict[str, Any],
    stop: StopSignals,
    timeout_s: float | None,
) -> Iterator[tuple[str, bytes]]:
    """Yield (service, bytes) until a signal; raise SilenceError after `timeout_s` without any."""
    waiting: Sequence[Subscriber] = list(subscribers.values())
    last = looked = monotonic()
    while not stop.event.is_set():
        if transport.wait(waiting, POLL_MS):
            last = monotonic()
        elif timeout_s is not None and monotonic() - last > timeout_s:
            raise SilenceError(
                f"bus: expected a message of {', '.join(subscribers)} within {timeout_s:g} s, "
                "found none; is the daemon running on this address?"
            )
        if monotonic() - looked > LOOK_S:
            transport.log_refused()
            looked = monotonic()
        for name, subscriber in subscribers.items():
            while (data := subscriber.receive()) is not None:
                yield name, data


if __name__ == "__main__":
    from tools.cli import main

    sys.exit(main(["subscribe", *sys.argv[1:]]))
