"""Forward services from one bus to another, such as from openpilot's rings to sockets.

Addresses have the form of --bus in other commands: msgq:, msgq:PREFIX, tcp://HOST or
ipc:///DIRECTORY. Without SERVICE all services are forwarded, except those that another process
already publishes at --to; naming one of these is an error. Messages keep their bytes and their
order. A service is subscribed to only while it has a subscriber at --to.

SIGTERM (exit code 0) or SIGINT (130) ends the command. It then prints for each service how many
messages were forwarded, dropped because they are too large for --to, or lost at --from.

Example:
  modeld bridge --from msgq: --to 'tcp://*' --bus-keys /etc/modeld/keys
  modeld bridge --from tcp://192.168.0.10 --to msgq: carState carControl liveCalibration
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

from cereal.msgq import wake
from cereal.services import RENAMED_2026, SERVICES, service
from cereal.stacks import DEFAULT_STACK, STACKS, Addresses, BusAddress, Stack
from modeld.bus import open_bus
from modeld.service.config import environment_prefix
from modeld.startup import StopSignals
from tools.errors import UsageError
from tools.lib.json_output import print_json
from tools.service.bus_bridge import Bridge

_FORM: Final = "tcp://HOST, tcp://HOST:+N, ipc:///DIRECTORY, msgq: or msgq:PREFIX"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("services", nargs="*", metavar="SERVICE", help="services to forward (all)")
    for option, dest, text in (
        ("--from", "source", "where messages come from"),
        ("--to", "target", "where they are published"),
    ):
        parser.add_argument(
            option, dest=dest, required=True, metavar="ADDRESS", help=f"{text}: {_FORM}"
        )
    parser.add_argument(
        "--stack",
        choices=STACKS,
        default=DEFAULT_STACK.name,
        metavar="NAME",
        help=f"stack of both sides: {', '.join(STACKS)} ({DEFAULT_STACK.name})",
    )
    for option in ("--from-stack", "--to-stack"):
        parser.add_argument(
            option, choices=STACKS, metavar="NAME", help="stack of one side, if the sides differ"
        )
    parser.add_argument(
        "--bus-keys",
        type=Path,
        metavar="DIRECTORY",
        help="keys for addresses of other machines, as modeld keys makes them",
    )


def run(args: argparse.Namespace) -> int:
    """Forward messages until a signal ends the command; return the exit code."""
    # Call this before any thread starts. Ring writers wake readers with a signal that would
    # otherwise kill a thread.
    wake.block()
    sides = [
        (args.source, STACKS[args.from_stack or args.stack]),
        (args.target, STACKS[args.to_stack or args.stack]),
    ]
    # Transports use the 2025 names. SERVICES has both names of a renamed service.
    asked = [service(name).name for name in args.services or SERVICES]
    names = list(dict.fromkeys(RENAMED_2026.get(name, name) for name in asked))
    prefix = environment_prefix()
    _check_no_loop(sides, names, prefix)
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignals())
        source, target = (
            stack.enter_context(
                closing(open_bus(Addresses(text, text), one, prefix=prefix, keys=args.bus_keys))
            )
            for text, one in sides
        )
        bridge = Bridge(source, target, names, leave_out=not args.services)
        try:
            bridge.run(stop.event)
        finally:
            bridge.close()
            _print_counts(bridge, args)
    return stop.exit_code


def _check_no_loop(sides: Sequence[tuple[str, Stack]], names: Sequence[str], prefix: str) -> None:
    """Raise UsageError if a service would be forwarded to its own source."""
    (source, _), (target, _) = sides
    places = [_places(BusAddress.parse(text), stack, names, prefix) for text, stack in sides]
    same = [name for name, one, other in zip(names, *places, strict=True) if one == other]
    if same:
        raise UsageError(
            f"bridge: expected different places at --from and --to, found {same[0]} of {source} "
            f"and of {target} in one, where messages would circulate forever; use another prefix, "
            "directory or +N"
        )


def _places(address: BusAddress, stack: Stack, names: Sequence[str], prefix: str) -> list[str]:
    """Return the file or endpoint of each service at an address."""
    if address.prefix is not None:
        return [str(stack.queue_path(name, address.prefix or prefix)) for name in names]
    if address.directory is None and (address.is_any_interface or not address.leaves_machine):
        # Such an address and tcp://* both mean this machine.
        address = BusAddress("*", None, address.hash_name, address.moved)
    return [address.endpoint(name, stack) for name in names]


def _print_counts(bridge: Bridge, args: argparse.Namespace) -> None:
    """Print the number of messages forwarded, dropped and lost, by service."""
    counts: dict[str, dict[str, int]] = {
        what: {lane.service: getattr(lane, what) for lane in bridge.lanes if getattr(lane, what)}
        for what in ("messages", "dropped", "lost")
    }
    if args.json:
        summary: dict[str, Any] = {"from": args.source, "to": args.target}
        services = [lane.service for lane in bridge.lanes]
        others = {"left_out": bridge.left_out, "given_up": bridge.given_up}
        print_json({**summary, "services": services, **counts, **others})
        return
    total = sum(counts["messages"].values())
    print(f"{args.source} to {args.target}: {total} messages, {len(bridge.lanes)} services")
    for lane in bridge.lanes:
        if lane.messages or lane.dropped or lane.lost:
            print(
                f"{lane.service:<24} {lane.messages}"
                + f"  {lane.dropped} dropped" * bool(lane.dropped)
                + f"  lost {lane.lost} times" * bool(lane.lost)
            )
