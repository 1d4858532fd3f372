"""Options of commands that open the bus: where it is, and whose names and ports it has."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import get_args

from cereal.services import HashName
from cereal.stacks import DEFAULT_STACK, STACKS, Stack
from cereal.transport import ZmqTransport


def add_stack_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare whose names and ports the bus has; without them those of the default stack."""
    parser.add_argument(
        "--stack",
        choices=STACKS,
        metavar="NAME",
        help=f"whose names and ports the bus has: {', '.join(STACKS)} ({DEFAULT_STACK.name})",
    )
    parser.add_argument(
        "--port-hash",
        choices=get_args(HashName),
        help="hash that gives TCP ports; murmur before November 2024 (the stack's)",
    )


def add_bus_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the bus."""
    parser.add_argument(
        "--bus",
        default="tcp://127.0.0.1",
        metavar="ADDRESS",
        help="tcp://HOST or ipc:///DIRECTORY (tcp://127.0.0.1)",
    )
    add_stack_arguments(parser)


def stack_of(args: argparse.Namespace) -> Stack:
    """Return the stack that was asked for."""
    stack = STACKS[args.stack or DEFAULT_STACK.name]
    return replace(stack, hash_name=args.port_hash) if args.port_hash else stack


def open_bus(args: argparse.Namespace) -> ZmqTransport:
    """Open the bus that was asked for.

    Raises:
        TransportError: the address has another form.
    """
    return ZmqTransport(args.bus, stack=stack_of(args))
