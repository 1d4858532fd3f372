"""Gates: conditions in metres and seconds that a change must meet.

A gate, such as ``lateral_2s_max_m < 0.05``, has the name of a metric, a comparison operator and a
limit. Metrics come from `tools.behaviour.difference` or from a closed-loop result. Gates from the
command line or from a file are parsed and checked here, before anything is run.
"""

from __future__ import annotations

import argparse
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from runtime.texts import float_of
from tools.errors import UsageError
from tools.lib.given_data import GivenText

ORDERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MAX_GATES: Final = 200
MAX_CHARACTERS: Final = 200
# More would make names slow to match.
MAX_STARS: Final = 4
MAX_FILE_BYTES: Final = 64 << 10
_GATE: Final = re.compile(r"\s*([A-Za-z*][\w.*#-]*)\s*(<=|>=|<|>)\s*(\S+)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Gate:
    """One condition on a metric."""

    name: str  # name of the metric; * matches any text without a dot
    order: str  # the operator, one of ``ORDERS``
    limit: float  # finite, in the metric's unit

    @property
    def text(self) -> str:
        """The condition as text."""
        return f"{self.name} {self.order} {self.limit:g}"

    def names(self, figure: str) -> bool:
        """Return whether the gate's name matches a metric."""
        pattern = "[^.]*".join(re.escape(part) for part in self.name.split("*"))
        return re.fullmatch(pattern, figure) is not None

    def holds(self, value: float) -> bool:
        """Return whether a value meets the condition; NaN never does."""
        return ORDERS[self.order](value, self.limit)


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates that the user gave."""

    all: tuple[Gate, ...] = ()  # all of them must hold
    decide: bool = False  # whether gates replace the tolerances of outputs


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """The verdict on one gate."""

    gate: str  # the gate's text
    name: str  # the deciding metric: the worst one that the gate names
    value: float | None  # value of that metric; None without one
    holds: bool
    note: str = ""  # reason for the missing value, or ""

    @property
    def text(self) -> str:
        """One line: the condition and the result."""
        return f"{self.gate}: {self.found}"

    @property
    def found(self) -> str:
        """The value without an exponent, or the reason why there is none.

        The name of the metric follows if the gate has a ``*``.
        """
        if self.value is None:
            return self.note
        text = f"{self.value:.4g}"
        text = text if "e" not in text else f"{self.value:.9f}".rstrip("0").rstrip(".")
        return f"{text} ({self.name})" if "*" in self.gate else text


def parse_gates(
    texts: Sequence[str], file: Path | None, names: Iterable[str] | None
) -> tuple[Gate, ...]:
    """Parse the gates given as `texts` and in `file`.

    The file has one gate per line; ``#`` begins a comment. `names` are the known metrics; None
    skips the check of names.

    Raises:
        UsageError: a gate cannot be parsed, or names an unknown metric.
    """
    placed = [("--gate", text) for text in texts]
    if file is not None:
        placed += _lines_of(file)
    if len(placed) > MAX_GATES:
        raise UsageError(f"--gate: expected at most {MAX_GATES} gates, found {len(placed)}")
    known = None if names is None else tuple(names)
    return tuple(_parse(text, where, known) for where, text in placed)


def _lines_of(file: Path) -> list[tuple[str, str]]:
    text = GivenText(file, UsageError, MAX_FILE_BYTES, advice="see --gate").text()
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [(f"{file}:{number}", line) for number, line in enumerate(lines, 1) if line]


def _parse(text: str, where: str, known: Sequence[str] | None) -> Gate:
    shown = text[:MAX_CHARACTERS]
    found = _GATE.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
    if found is None or found[1].count("*") > MAX_STARS:
        raise UsageError(
            f"{where}: expected NAME < NUMBER (or <=, >, >=) and at most {MAX_STARS} *, found "
            f"{shown!r}; for example 'lateral_2s_max_m < 0.05'"
        )
    name, order, number = found.groups()
    limit = math.nan
    with suppress(ValueError):
        limit = float_of(number)
    if not math.isfinite(limit):
        raise UsageError(f"{where}: expected a finite number after {order}, found {number!r}")
    gate = Gate(name, order, limit)
    if known is not None:
        check_gate(gate, known, where)
    return gate


def check_gate(gate: Gate, known: Sequence[str], where: str) -> None:
    """Check that a gate names a known metric.

    Raises:
        UsageError: no known metric matches; the message suggests a similar name.
    """
    if any(gate.names(figure) for figure in known):
        return
    near = get_close_matches(gate.name, known, 1, cutoff=0.5)
    advice = f"did you mean {near[0]}?" if near else "docs/regression.md lists them"
    raise UsageError(f"{where}: expected the name of a figure, found {gate.name!r}; {advice}")


def judge(figures: Mapping[str, float | None], gates: Sequence[Gate]) -> tuple[GateVerdict, ...]:
    """Return a verdict on each gate.

    `figures` has the metrics by name. None means that neither side has a value, for example because
    no car was ahead in the entire drive; the gate holds. NaN means that only one side has a value;
    the gate fails.
    """
    return tuple(_judge_one(figures, gate) for gate in gates)


def _judge_one(figures: Mapping[str, float | None], gate: Gate) -> GateVerdict:
    named = {name: value for name, value in figures.items() if gate.names(name)}
    values = {name: value for name, value in named.items() if value is not None}
    if not named:
        note = "no such figure here; figures of errors need the truth of a rendered drive"
        return GateVerdict(gate.text, gate.name, None, holds=False, note=note)
    if not values:
        return GateVerdict(gate.text, gate.name, None, holds=True, note="nothing to judge")
    worst = min(values, key=lambda name: _margin(gate, values[name]))
    value = values[worst]
    if math.isnan(value):
        note = "not on both sides"
        return GateVerdict(gate.text, worst, None, holds=False, note=note)
    return GateVerdict(gate.text, worst, value, gate.holds(value))


def _margin(gate: Gate, value: float) -> float:
    """Return the distance to the limit, positive if the gate holds; -infinity for NaN."""
    if math.isnan(value):
        return -math.inf
    return gate.limit - value if gate.order in ("<", "<=") else value - gate.limit


# --- Command-line options, shared by all commands with gates ----------------------------------


def add_gate_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options ``--gate``, ``--gates`` and ``--gates-only``."""
    group = parser.add_argument_group("gates on the effect on the drive")
    add_gates(group, "lateral_2s_max_m < 0.05")
    group.add_argument(
        "--gates-only",
        action="store_true",
        help="gates decide instead of tolerances, for an intended change: another precision, "
        "target or compiler; what is missing or not finite still fails",
    )


def add_gates(group: argparse._ActionsContainer, example: str) -> None:
    """Add the options that name gates to a group; `example` is shown in the help text."""
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
    """Return the gates from the parsed options, which include ``bit_exact``.

    `names` are the known metrics; None skips the check of names.

    Raises:
        UsageError: a gate cannot be parsed, or the options contradict each other.
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
