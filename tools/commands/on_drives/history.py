"""Show the metrics of a repository's runs from commit to commit, and judge the latest ones.

With --history DIR, modeld bench, compare, drive and regress add a line to a history: the commit of
the checkout that they were started in, date, device, digest of the artifact, and their metrics.
This command reads all lines; damaged ones are reported and skipped. Runs of the same command,
subject and device form one curve per metric.

The latest value is compared with the median of the runs since the last change. It fails if the
difference exceeds the largest of 4 standard deviations (from the median absolute deviation), 2 % of
the median, and the smallest difference that matters. Improvements never fail. At least 5 earlier
runs are needed. Change points mark lasting changes of level. Exit code 1: a latest value fails.

Example:
  modeld history build/history --html history.html
  modeld history build/history --figure 'offset_*' --figure median_ms
  modeld bench build/driving.pkl --history build/history
  modeld drive --model build/driving.pkl --history build/history
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.lib.json_output import print_json
from tools.lib.terminal import format_table
from tools.report.history import read_history
from tools.report.history_report import (
    Series,
    change_texts,
    judge_runs,
    range_text,
    value_of,
    verdict_of,
    write_history,
)

HEADER = ("", "figure", "last", "allowed", "runs", "commit", "of")
# The maximum number of unchanged metrics to print. --json and --html have all of them.
SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("history", type=Path, metavar="DIR", help="that --history named")
    parser.add_argument("--html", type=Path, metavar="OUT", help="also write a page with plots")
    parser.add_argument(
        "--figure",
        action="append",
        default=[],
        metavar="NAME",
        help="only these figures, repeatable, with * and ?",
    )


def run(args: argparse.Namespace) -> int:
    """Print the metrics; return 1 if a latest value is outside its allowed range, else 0.

    Raises:
        UsageError: there is no history, or the page cannot be written.
    """
    runs, damaged = read_history(args.history)
    series = judge_runs(runs, args.figure)
    if args.html is not None:
        write_history(args.html, runs, series, damaged)
    for text in damaged:
        print(f"modeld: warning: {text}", file=sys.stderr)
    html = None if args.html is None else str(args.html)
    if args.json:
        figures = [_as_json(one) for one in series]
        about = {"runs": len(runs), "damaged": damaged, "verdict": verdict_of(series)}
        print_json({**about, "figures": figures, "html": html})
    else:
        _print(series)
        if html is not None:
            print(f"page: {html}")
        print(verdict_of(series))
    return 1 if any(one.state == "beyond" for one in series) else 0


def _as_json(series: Series) -> dict[str, Any]:
    last = series.runs[-1]
    points = [
        {"commit": series.runs[one.at].commit, "before": one.before, "after": one.after}
        for one in series.changes
    ]
    return {
        "figure": series.figure,
        "command": last.command,
        "subject": last.subject,
        "device": last.device,
        "state": series.state,
        "last": float(series.values[-1]),
        "allowed": list(series.allowed),
        "runs": len(series.runs),
        "commit": last.commit,
        "changes": points,
    }


def _print(series: Sequence[Series]) -> None:
    changed = [one for one in series if one.state in ("beyond", "better") or one.changes]
    others = [one for one in series if one not in changed]
    rows = [_row(one) for one in (*changed, *others[:SHOWN])]
    if rows:
        print(format_table(HEADER, rows))
    if len(others) > SHOWN:
        print(f"and {len(others) - SHOWN} more figures without a change")
    for one in changed:
        for text in change_texts(one):
            print(f"{one.figure}: {text}")


def _row(series: Series) -> tuple[str, ...]:
    last = series.runs[-1]
    state = "BEYOND" if series.state == "beyond" else series.state
    value = value_of(float(series.values[-1]))
    of = f"{last.command} {last.subject}".strip()
    return (state, series.figure, value, range_text(series), str(len(series.runs)), last.name, of)
