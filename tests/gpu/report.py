"""The report of a run as Markdown, and whether something failed."""

from collections.abc import Iterator, Mapping
from typing import Any


def failures(report: Mapping[str, Any]) -> list[str]:
    """Return what is wrong, one line each: results, never times, and never what was not reached."""
    found = [f"tests/drivers: {name}" for name in report["drivers"]["failed"]]
    if report["drivers"]["problem"] and not report["drivers"]["counts"]:
        found.append(f"tests/drivers: {report['drivers']['problem']}")
    for title, row in (*report["artifacts"].items(), *report["tuned"].items()):
        if not row.get("self_test", {"passed": True})["passed"]:
            found.append(f"{title}: {row['self_test']['text']}: {row['self_test']['worst']}")
        if row["state"].startswith("does not"):
            found.append(f"{title}: {row['state']}")
    return found


def markdown(report: Mapping[str, Any]) -> str:
    wrong = failures(report)
    lines = [
        f"# GPU: {report['device']}, row {report['target']}",
        "",
        f"Written by `make test-gpu` in {report['seconds']:.0f} s. "
        + (f"**{len(wrong)} failed.**" if wrong else "Nothing failed."),
        "",
        *(f"- {line}" for line in wrong),
        *_machine(report["doctor"]),
        *_drivers(report["drivers"]),
        *_artifacts(report["artifacts"]),
        *_tuned(report["tuned"]),
        *_peers(report),
    ]
    return "\n".join([*lines, ""])


def _machine(doctor: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "## Machine", "")
    if "problem" in doctor:
        yield f"`modeld doctor`: {doctor['problem']}"
    for section in doctor.get("sections", ()):
        for finding in section["findings"]:
            yield f"- {section['name']}, {finding['verdict']}: {finding['text']}"
    for section in doctor.get("sections", ()):
        head, *rows = section["table"] or [[]]
        if rows:
            yield from ("", f"Slowest {section['name']}:", "")
            yield f"| {' | '.join(map(str, head))} |"
            yield "|" + "---|" * len(head)
            yield from (f"| {' | '.join(map(str, row))} |" for row in rows)


def _drivers(suite: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "## Tests of drivers", "")
    counts = ", ".join(f"{number} {verdict}" for verdict, number in suite["counts"].items())
    cut = f"; {suite['problem']}" if suite["problem"] else ""
    yield f"{counts or 'none'} in {suite['seconds']:.0f} s{cut}"


def _artifacts(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield from ("", "## Artifacts", "", "Times in ms: runs back to back, and after a pause.", "")
    head = ("artifact", "self-test", "launches", "p50", "p99", "p50 after 50 ms", "p99 after 50 ms")
    yield f"| {' | '.join(head)} | GFLOP/s |"
    yield "|" + "---|" * 8
    for title, row in rows.items():
        if "bench" not in row:
            yield f"| {title} | {row['state']} | | | | | | |"
            continue
        bench, paced = row["bench"], row["paced"]["50"]
        verdict = "passed" if row["self_test"]["passed"] else "**failed**"
        numbers = (bench["median_ms"], bench["p99_ms"], paced["p50_ms"], paced["p99_ms"])
        times = " | ".join(f"{number:.3f}" for number in numbers)
        yield f"| {title} | {verdict} | {bench['launches']} | {times} | {bench['gflops']:.0f} |"


def _tuned(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield from ("", "## Tuned loops", "")
    yield "| model | kernels ms | tuned ms | run, tuned / before | range | other loops |"
    yield "|" + "---|" * 6
    for title, row in rows.items():
        if "beside" not in row:
            yield f"| {title} | {row['state']} | | | | |"
            continue
        beside = row["beside"]
        yield (
            f"| {title} | {row['heuristic_ms']:.3f} | {row['best_ms']:.3f} | "
            f"{beside['ratio']:.3f} | {beside['ratio_min']:.3f} to {beside['ratio_max']:.3f} | "
            f"{len(row['choices'])} |"
        )


def _peers(report: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "## Beside others", "")
    if report.get("peers_problem"):
        yield report["peers_problem"]
        return
    yield "| model | ours ms | beside | theirs ms | ours / theirs | largest error | its settings |"
    yield "|" + "---|" * 7
    for name, row in report["peers"].items():
        if "problem" in row:
            yield f"| {name} | {row['problem']} | | | | | |"
            continue
        for peer, one in row["peers"].items():
            error = "-" if one["max_rel_err"] is None else f"{one['max_rel_err']:.0e}"
            yield (
                f"| {name} | {row['ours_ms']:.3f} | {peer} | {one['theirs_ms']:.3f} | "
                f"{one['ratio']:.3f} | {error} | {one['options']} |"
            )
