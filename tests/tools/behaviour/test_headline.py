"""What a change does to the drive, in one sentence and a few rows for people."""

import math

import pytest

from tools.behaviour.describe import (
    SUMMARY_HEADER,
    behaviour_part,
    gates_sentence,
    length_text,
    number,
    path_sentence,
    summary_rows,
    value_text,
    worst_frame,
)
from tools.behaviour.difference import BehaviourVerdict, Row, Spread
from tools.behaviour.gates import Gate, judge
from tools.behaviour.quantities import QUANTITIES

MOVED = "The path moves by at most 2.0 mm after 2 s (frame 7)."
NOTHING = Spread(0, math.nan, math.nan, math.nan, -1)


def row(name: str, largest: float, frame: int = 7, lost: int = 0) -> Row:
    """Return a row of a quantity with a largest difference; NaN: it has none."""
    unit = next(quantity.unit for quantity in QUANTITIES if quantity.name == name)
    some = Spread(20, largest / 4, largest / 2, largest, frame)
    spread = NOTHING if math.isnan(largest) else some
    return Row(name, unit, spread, spread.mean, 0.0, largest, lost, 0)


@pytest.mark.parametrize(
    ("value_m", "text"),
    [
        (0.0026, "2.6 mm"),
        (-0.0026, "-2.6 mm"),
        (0.0, "0.0 mm"),
        (2.66e-5, "<0.1 mm"),
        (0.0999, "10.0 cm"),
        (0.25, "25.0 cm"),
        (1.234, "1.23 m"),
        (1e9, "1000000000.00 m"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_a_length_is_written_as_people_do(value_m: float, text: str) -> None:
    assert length_text(value_m) == text


def test_a_row_of_lengths_has_one_unit_and_others_no_exponent() -> None:
    assert length_text(0.0026, 0.4) == "0.3 cm"
    assert value_text(0.0001, "m/s") == "<0.01 m/s"
    assert value_text(1.5, "m/s2") == "1.50 m/s²"
    assert value_text(1.5, "") == "1.500"


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([row("lateral_2s", 0.0026)], "The path moves by at most 2.6 mm after 2 s (frame 7)."),
        (
            [row("lateral_2s", 0.0026), row("lateral_2s", 0.4, 9)],
            "The path moves by at most 40.0 cm after 2 s (frame 9).",
        ),
        (
            [row("lateral_2s", 0.002), row("acceleration", 3.5), row("speed_2s", 0.4)],
            f"{MOVED.removesuffix('.')}, the acceleration by up to 3.50 m/s².",
        ),
        (
            [row("lateral_2s", 0.0), row("lead_prob", 0.2)],
            "The path does not move, but other outputs differ.",
        ),
        (
            [row("lateral_2s", 0.0), row("left_line_30m", 0.3), row("lead_distance", 2.0)],
            "The path does not move; own lane lines, 30 m ahead: at most 30.0 cm.",
        ),
        (
            [row("lateral_2s", 0.0)],
            "The path does not move.",
        ),
        (
            [row("lateral_2s", math.nan, lost=3)],
            "No path could be compared. 3 frames have a path on one side only.",
        ),
        (
            [row("lateral_2s", 0.002, lost=1)],
            f"{MOVED} 1 frame has a path on one side only.",
        ),
        ([], ""),
    ],
)
def test_the_sentence_says_by_how_much_the_path_moves(rows: list[Row], text: str) -> None:
    assert path_sentence(rows) == text


def test_gates_are_summed_up_and_those_that_failed_named() -> None:
    gates = [Gate("a", "<", 1.0), Gate("b", "<", 1.0)]
    assert gates_sentence([]) == ""
    assert gates_sentence(judge({"a": 0.5, "b": 0.5}, gates)) == "All 2 gates hold."
    assert gates_sentence(judge({"a": 0.5}, gates[:1])) == "The gate holds."
    said = gates_sentence(judge({"a": 0.5, "b": 2.66e-5}, [gates[0], Gate("b", ">", 1.0)]))
    assert said == "1 of 2 gates failed: b > 1: 0.0000266."
    # Of several drives each gate is one, where it fails most.
    several = [*judge({"a": 2.0}, gates[:1]), *judge({"a": 3.0}, gates[:1])]
    assert gates_sentence(several) == "The gate failed: a < 1: 3 (worst of 2)."
    assert gates_sentence(judge({"a": 2.0}, gates[:1])) == "The gate failed: a < 1: 2."


def test_the_summary_has_the_worse_line_and_leaves_out_what_nobody_has() -> None:
    rows = [
        row("lateral_2s", 0.0026, 3),
        row("left_line_30m", 0.01),
        row("right_line_30m", 0.2, 11, lost=2),
        row("lead_distance", math.nan),
    ]
    found = summary_rows(rows)
    assert all(len(cells) == len(SUMMARY_HEADER) for cells in found)
    assert found == [
        ("path, sideways, after 2 s", "2.6 mm", "3", "1.3 mm", "0.7 mm", "-"),
        ("own lane lines, 30 m ahead", "20.0 cm", "11", "10.0 cm", "5.0 cm", "2"),
    ]
    assert worst_frame(rows) == 3
    assert worst_frame([row("lateral_2s", 0.0)]) == -1


def test_gates_and_metres_come_before_all_quantities_which_are_folded() -> None:
    rows = tuple(row(quantity.name, 2.66e-5) for quantity in QUANTITIES)
    gates = judge({"a": 2.0}, [Gate("a", "<", 1.0)])
    text = behaviour_part(BehaviourVerdict(rows, gates), ("left", "right"))
    places = [
        text.index(one) for one in ('<td class="bad">fails</td>', "path, sideways", "<details>")
    ]
    assert places == sorted(places)
    assert f"All {len(QUANTITIES)} quantities" in text
    assert "e-0" not in text
    # What is a number stands on the right, and does not break.
    assert '<td class="number">&lt;0.1 mm</td>' in text
    assert '<td class="number">0.0000266</td>' in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.66e-5, "0.0000266"), (-0.191, "-0.191"), (12345.6, "12346"), (0.0, "0"), (99.96, "100")],
)
def test_a_figure_has_no_exponent(value: float, text: str) -> None:
    assert number(value) == text
