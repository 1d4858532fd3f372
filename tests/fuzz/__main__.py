"""Runs random programs and compares what comes of them: `python -m tests.fuzz [KIND ...]`.

    python -m tests.fuzz --programs 20000 --jobs 2           all kinds, in proportion
    python -m tests.fuzz onnx --seconds 3600 --seed 1000000  one kind, other programs, for an hour
    python -m tests.fuzz strict --report a.json              with MODELD_POCL_CPU=x86-64-v3; then
    python -m tests.fuzz strict --same-as a.json             the same bytes on both processors
    python -m tests.fuzz --replay graphs/cpu-avx2:17~4       one program again

Ends with 1 where something was wrong. What is printed of it finds it again.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.fuzz.batch import Outcome
from tests.fuzz.case import Name
from tests.fuzz.hunt import Plan, Totals, hunt, run_names
from tests.fuzz.kinds import KINDS
from tests.fuzz.worker import Worker

EVERY = 500  # programs between two lines of progress


def parse_name(text: str) -> list[Name]:
    """Return the names of KIND/ROW:SEED~STEPS; without a row one for each of the kind's."""
    where, _, number = text.partition(":")
    kind, _, row = where.partition("/")
    seed, _, steps = number.partition("~")
    if kind not in KINDS or (row and row not in KINDS[kind].rows):
        raise ValueError(f"{text!r}: expected KIND/ROW:SEED, KIND one of {', '.join(KINDS)}")
    rows = [row] if row else list(dict.fromkeys(KINDS[kind].rows))
    return [Name(kind, r, int(seed), int(steps or 0)) for r in rows]


def say(text: str) -> None:
    """Print a line at once: a run is long, and may be watched through a pipe."""
    print(text, flush=True)  # noqa: T201  # a command's output


def shown(outcome: Outcome) -> str:
    """Return what is told of a wrong program."""
    parts = [f"WRONG {outcome.name}", outcome.problem, outcome.text]
    return "\n  ".join("\n".join(p for p in parts if p).splitlines())


class Progress:
    """Tells of wrong programs at once, and of all now and then."""

    def __init__(self) -> None:
        self.next = EVERY

    def __call__(self, totals: Totals, outcome: Outcome | None) -> None:
        if outcome is not None:
            say(shown(outcome))
            return
        count = totals.programs.total()
        if count >= self.next:
            self.next = count + EVERY
            speed = count / totals.seconds
            say(f"{count} programs, {speed:.1f}/s, {len(totals.wrong)} wrong")


def summary(totals: Totals) -> dict[str, Any]:
    """Return what a run found, as plain data."""
    kinds: dict[str, Any] = {}
    for (kind, row), count in sorted(totals.programs.items()):
        known = kinds.setdefault(kind, {"programs": 0, "rows": {}, **vars(totals.counts[kind])})
        known["programs"] += count
        known["rows"][row] = count
    return {
        "programs": totals.programs.total(),
        "seconds": round(totals.seconds, 1),
        "kinds": kinds,
        "wrong": [{"name": str(o.name), "problem": o.problem} for o in totals.wrong],
        "digests": totals.digests,
    }


def others(totals: Totals, path: Path) -> list[str]:
    """Return the programs that gave other bytes in the run of a report."""
    theirs = json.loads(path.read_text(encoding="utf-8"))["digests"]
    common = totals.digests.keys() & theirs.keys()
    found = sorted(name for name in common if totals.digests[name] != theirs[name])
    say(f"{path}: {len(common) - len(found)} of {len(common)} programs gave the same bytes")
    return found


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all")
    parser.add_argument("--programs", type=int, default=20_000, help="how many (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin nothing after these")
    parser.add_argument("--seed", type=int, default=0, help="first seed of each kind")
    parser.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    parser.add_argument("--report", type=Path, help="write what was found as JSON")
    parser.add_argument(
        "--same-as",
        type=Path,
        action="append",
        default=[],
        metavar="REPORT",
        help="expect the bytes of that run, on another processor, of programs of kind strict",
    )
    parser.add_argument("--replay", metavar="NAME", help="run one program again: KIND/ROW:SEED")
    parser.add_argument("--plant", default="", help=argparse.SUPPRESS)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = arguments()
    given = parser.parse_args(argv)
    unknown = [kind for kind in given.kinds if kind not in KINDS]
    if unknown:
        parser.error(f"no kind {unknown[0]!r}: expected some of {', '.join(KINDS)}")
    if given.replay:
        return replay(parse_name(given.replay), given.plant)
    kinds = tuple(given.kinds) or tuple(KINDS)
    plan = Plan(kinds, given.programs, given.seconds, given.seed, given.jobs, given.plant)
    totals = hunt(plan, Progress())
    found = summary(totals)
    if given.report is not None:
        given.report.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for kind, known in found["kinds"].items():
        compared = f"{known['exact']} exact, {known['bounded']} bounded, {known['undecided']} open"
        rows = ", ".join(f"{row} {count}" for row, count in known["rows"].items())
        say(f"{kind}: {known['programs']} programs ({rows}); elements: {compared}")
    say(f"{found['programs']} programs in {found['seconds']} s, {len(totals.wrong)} wrong")
    differing = [name for path in given.same_as for name in others(totals, path)]
    for name in differing:
        say(f"OTHER BYTES {name}")
    return 1 if totals.wrong or differing else 0


def replay(names: list[Name], plant: str) -> int:
    """Run programs again, one by one; return the exit code."""
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        worker = Worker(Path(directory), 0, plant)
        for name in names:
            (outcome,) = run_names(worker, [name])
            wrong += bool(outcome.problem)
            say(shown(outcome) if outcome.problem else f"{name}: right")
        worker.stop()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
