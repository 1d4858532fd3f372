"""The options of gates, the same for every command that has them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from tools.behaviour.gates import Gates, parse_gates
from tools.errors import UsageError


def add_gate_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("gates on what a change does to the drive")
    add_gates(group, "lateral_2s_max_m < 0.05")
    group.add_argument(
        "--gates-only",
        action="store_true",
        help="gates decide instead of tolerances, for an intended change: another precision, "
        "target or compiler; what is missing or not finite still fails",
    )


def add_gates(group: argparse._ActionsContainer, example: str) -> None:
    """Declare the options that name gates.

    Args:
        group: gets them.
        example: of a gate.
    """
    group.add_argument(
        "--gate",
        action="append",
        default=[],
        metavar="COND",
        help="condition in metres and seconds, repeatable: "
        f"'{example}'; docs/regression.md lists the names",
    )
    group.add_argument(
        "--gates", type=Path, metavar="FILE", help="conditions, one a line, # begins a comment"
    )


def gates_of(args: argparse.Namespace, names: Iterable[str] | None) -> Gates:
    """Return what the options say.

    Args:
        args: parsed, with ``bit_exact``.
        names: figures that gates may name; None: not known yet.

    Raises:
        UsageError: a gate cannot be read, or the options contradict each other.
    """
    gates = parse_gates(args.gate, args.gates, names)
    if args.gates_only and not gates:
        raise UsageError(
            "--gates-only: expected gates that decide, found none; write some with --gate or "
            "--gates"
        )
    if args.gates_only and args.bit_exact:
        raise UsageError("--gates-only: expected no --bit-exact with it; choose one")
    return Gates(gates, args.gates_only)
