"""Gates: what may be written, what is refused and how, and when they hold."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tools.behaviour.difference import figure_names
from tools.behaviour.gates import MAX_GATES, Gate, judge, parse_gates
from tools.errors import UsageError

NAMES = figure_names()


def parsed(*texts: str) -> tuple[Gate, ...]:
    return parse_gates(texts, None, NAMES)


def test_gates_from_options_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "fp16.gates"
    file.write_text("# fp16\n\nlateral_1s_max_m<=5e-2  # one lane in 60\n", encoding="utf-8")
    gates = parse_gates(["lead_seen_mean < .01"], file, NAMES)
    assert gates == (Gate("lead_seen_mean", "<", 0.01), Gate("lateral_1s_max_m", "<=", 0.05))
    assert gates[1].text == "lateral_1s_max_m <= 0.05"
    # A star names figures that exist.
    assert parsed("lateral_*_max_m < 0.1")[0].name == "lateral_*_max_m"
    with pytest.raises(UsageError, match="expected the name of a figure"):
        parsed("latral_*_max_m < 0.1")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("lateral_2s_max < 0.05", "did you mean lateral_2s_max_m"),
        ("latral_2s_max_m < 0.05", "did you mean lateral_2s_max_m"),
        ("xyzzy < 1", "docs/regression.md lists them"),
        ("lateral_2s_max_m", "expected NAME < NUMBER"),
        ("lateral_2s_max_m = 1", "expected NAME < NUMBER"),
        ("lateral_2s_max_m < 0.05 m", "expected NAME < NUMBER"),
        ("lateral_2s_max_m < nan", "expected a finite number"),
        ("lateral_2s_max_m < 1e999", "expected a finite number"),
        ("lateral_2s_max_m < 1_0", "expected a finite number"),
        ("", "expected NAME < NUMBER"),
        ("*l*a*t*e*r*x < 1", "at most 4 *"),
        ("a" * 4000 + " < 1", "expected NAME < NUMBER"),
    ],
)
def test_what_is_refused_and_how(text: str, found: str) -> None:
    with pytest.raises(UsageError) as error:
        parsed(text)
    assert found in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "No such file"),
        (b"\xff\xfe", "expected text"),
        (b"lead_seen_mean < 1\n" * (MAX_GATES + 1), f"at most {MAX_GATES}"),
        (b"#" * (80 << 10), "64 KiB"),
        (b"\nlead_seen_mean < x\n", "gates:2: expected a finite number"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: bytes | None, found: str) -> None:
    file = tmp_path / "gates"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=found):
        parse_gates([], file, NAMES)


@pytest.mark.parametrize(
    ("order", "value", "holds"),
    [
        ("<", 0.5, False),
        ("<", 0.4, True),
        ("<=", 0.5, True),
        (">", 0.5, False),
        (">", 0.6, True),
        (">=", 0.5, True),
    ],
)
def test_orders(order: str, value: float, holds: bool) -> None:
    (verdict,) = judge({"lead_seen_mean": value}, [Gate("lead_seen_mean", order, 0.5)])
    assert verdict.holds is holds
    assert verdict.value == value


def test_a_gate_on_nothing_holds_and_one_on_half_of_it_does_not() -> None:
    gate = Gate("lead_distance_max_m", "<", 1.0)
    (nothing,) = judge({gate.name: None}, [gate])
    assert (nothing.holds, nothing.note) == (True, "nothing to judge")
    (half,) = judge({gate.name: math.nan}, [gate])
    assert (half.holds, half.value) == (False, None)
    (absent,) = judge({}, [gate])
    assert not absent.holds
    assert "truth" in absent.text
    assert absent.text.endswith("does not hold")


def test_a_star_stands_for_all_figures_that_fit() -> None:
    figures: dict[str, float | None] = {
        "offset_p99_m": 0.5,
        "scenarios.curve.offset_p99_m": 0.3,
        "scenarios.lead.offset_p99_m": 0.8,
        "scenarios.empty.offset_p99_m": None,
        "scenarios.lead.p99_m": 9.0,
    }
    (one,) = judge(figures, [Gate("offset_p99_m", "<", 0.7)])
    assert (one.name, one.value, one.holds) == ("offset_p99_m", 0.5, True)
    (worst,) = judge(figures, [Gate("*.*.offset_p99_m", "<", 0.7)])
    assert (worst.name, worst.value) == ("scenarios.lead.offset_p99_m", 0.8)
    assert worst.text == "*.*.offset_p99_m < 0.7: 0.8 (scenarios.lead.offset_p99_m), does not hold"
    (least,) = judge(figures, [Gate("scenarios.*.offset_p99_m", ">", 0.1)])
    assert (least.name, least.holds) == ("scenarios.curve.offset_p99_m", True)
    # A star does not reach the errors.
    figures = {"lateral_2s_max_m": 0.1, "error.lateral_2s_max_m": 3.0}
    for name in ("lateral_*_max_m", "*_max_m"):
        assert judge(figures, [Gate(name, "<", 0.2)])[0].holds
    (verdict,) = judge(figures, [Gate("error.*_max_m", "<", 0.2)])
    assert (verdict.name, verdict.holds) == ("error.lateral_2s_max_m", False)
