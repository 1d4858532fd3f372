"""What came of the acceptance: a table for the documents, and a page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from tests.acceptance.plan import Run
from tools.report.report_page import table_part, whole_page

Result = Mapping[str, Any]
HEADER = (
    *("what", "seeds", "km", "done", "departures", "collisions", "offset mean m", "p99 m"),
    *("heading mean deg", "lateral jerk p99 m/s3", "least gap s", "recovered", "bounds"),
)
SCENARIO_HEADER = (
    *("scenario", "km", "done", "departures", "collisions", "offset mean m", "p99 m"),
    *("heading mean deg", "lateral jerk p99 m/s3", "least gap s", "speed m/s"),
)
FAULT_HEADER = (
    *("fault", "km", "done", "departures", "offset mean m", "change", "p99 m", "change"),
    *("heading mean deg", "lateral jerk p99 m/s3", "speed m/s"),
)

FIGURES = ("offset_mean_m", "offset_p99_m", "heading_mean_deg", "lateral_jerk_p99_mps3")


@dataclass(frozen=True, slots=True)
class Done:
    """One run that is over."""

    run: Run
    result: Result
    passed: bool


def rows_of(done: Sequence[Done]) -> list[tuple[str, ...]]:
    return [_row(one) for one in done if "faults" not in one.result]


def fault_rows(done: Sequence[Done]) -> list[tuple[str, ...]]:
    results = [one.result["faults"] for one in done if "faults" in one.result]
    return [_fault_row(row, rows[0]) for rows in results for row in rows]


def scenario_rows(done: Sequence[Done]) -> list[tuple[str, ...]]:
    found = [one.result.get("scenarios", ()) for one in done]
    return [_scenario_row(row) for rows in found if len(rows) > 1 for row in rows]


def markdown(done: Sequence[Done], facts: Mapping[str, str]) -> str:
    """Return the tables for the documents."""
    return "\n".join(_markdown(done, facts))


def _markdown(done: Sequence[Done], facts: Mapping[str, str]) -> Iterator[str]:
    yield "# Acceptance of the driving model"
    yield ""
    yield from (f"- {name}: {value}" for name, value in facts.items())
    yield ""
    yield from _table(HEADER, rows_of(done))
    for one in done:
        gates = "; ".join(_gate(gate) for gate in one.result.get("gates", ()))
        must = " (must not be kept)" if one.run.fails else ""
        command = one.result["command"]
        found = f"{': ' if gates else ''}{gates}{_pace(one.result)}"
        yield f"- {one.run.what}: `{command}`{must}{found}"
    for header, rows in _more_tables(done):
        yield ""
        yield from _table(header, rows)


def _more_tables(done: Sequence[Done]) -> Iterator[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    for header, rows in (
        (SCENARIO_HEADER, scenario_rows(done)),
        (FAULT_HEADER, fault_rows(done)),
    ):
        if rows:
            yield header, rows


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def page(done: Sequence[Done], facts: Mapping[str, str]) -> str:
    """Return a page with the same tables; each run's own page lies beside it."""
    verdict = "passed" if all(one.passed for one in done) else "FAILED"
    told = "".join(f"<p>{escape(name)}: {escape(value)}</p>" for name, value in facts.items())
    links = "".join(
        f'<p><a href="{escape(one.run.name)}.html">{escape(one.run.what)}</a></p>'
        for one in done
        if "faults" not in one.result
    )
    sections = [
        f"<header><h1>Acceptance of the driving model</h1><p>{verdict}</p>{told}</header>",
        f"<section><h2>Drives</h2>{table_part(HEADER, rows_of(done))}{links}</section>",
        *(
            f"<section><h2>By {header[0]}</h2>{table_part(header, rows)}</section>"
            for header, rows in _more_tables(done)
        ),
    ]
    return whole_page("Acceptance", sections)


def _row(done: Done) -> tuple[str, ...]:
    result = done.result
    seeds = [drive["seed"] for drive in result["per_drive"]]
    verdict = "kept" if all(gate["holds"] for gate in result.get("gates", ())) else "not kept"
    return (
        *(done.run.what, f"{min(seeds)} to {max(seeds)}", *_counts(result)),
        *(str(result["collisions"]), *_numbers(result, *FIGURES)),
        *_numbers(result, "time_gap_min_s", "recovered_share"),
        verdict if done.passed else f"{verdict}: FAILED",
    )


def _scenario_row(row: Result) -> tuple[str, ...]:
    figures = _numbers(row, *FIGURES, "time_gap_min_s", "speed_mean_mps")
    return (str(row["scenario"]), *_counts(row), str(row["collisions"]), *figures)


def _fault_row(row: Result, without: Result) -> tuple[str, ...]:
    mean, high, *others = FIGURES
    return (
        *(str(row["fault"]), *_counts(row)),
        *(*_numbers(row, mean), _change(row, without, mean)),
        *(*_numbers(row, high), _change(row, without, high)),
        *_numbers(row, *others, "speed_mean_mps"),
    )


def _counts(row: Result) -> tuple[str, str, str]:
    """Return how far was driven, how many drives were completed, and departures."""
    return f"{row['km']:.2f}", f"{row['completed']}/{row['drives']}", str(row["departures"])


def _numbers(row: Result, *names: str) -> list[str]:
    return ["-" if row[name] is None else f"{row[name]:.3f}" for name in names]


def _pace(result: Result) -> str:
    """Return how punctual a live run was; "" for others."""
    if not result.get("live"):
        return ""
    return (
        f"; {result['answered']} of {result['frames']} frames answered, at {result['rate_hz']:g} "
        f"Hz after {result['latency_ms_p50']:.0f} ms (99 %: {result['latency_ms_p99']:.0f} ms), "
        f"{result['late_share']:.1%} late, "
        f"{1e-3 * result['slipped_ms']:.1f} s behind the clock in all"
    )


def _change(row: Result, without: Result, name: str) -> str:
    one, other = row[name], without[name]
    return "-" if one is None or other is None or row is without else f"{one - other:+.3f}"


def _gate(gate: Mapping[str, Any]) -> str:
    found = gate["note"] if gate["value"] is None else f"{gate['value']:.4g}"
    return f"{gate['gate']} ({found}{'' if gate['holds'] else ', not kept'})"
