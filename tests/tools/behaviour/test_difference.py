"""Differences of two behaviours, errors against the truth, and gates on the figures of both."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.tools.behaviour.made_models import Made, car_state, made_truth, message
from tools.behaviour.describe import behaviour_lines
from tools.behaviour.difference import BehaviourVerdict, Row, difference, figure_names, figures_of
from tools.behaviour.gates import MAX_GATES, Gate, judge, parse_gates
from tools.behaviour.quantities import Behaviour, behaviour_of, true_behaviour
from tools.errors import UsageError


def drive(aside_mps: list[float], first: int = 0) -> Behaviour:
    """Return frames whose plan goes aside at these speeds."""
    speed = car_state(first, 20.0)
    messages = [message(first + i, Made(aside_mps=a)) for i, a in enumerate(aside_mps)]
    return behaviour_of([speed, *messages])


def row(rows: tuple[Row, ...], name: str) -> Row:
    (found,) = [one for one in rows if one.quantity == name]
    return found


def test_mean_p99_maximum_and_bias_by_hand() -> None:
    # 101 frames that go aside 0, 1, ... 100 mm/s further to the left: after 2 s twice that.
    left = drive([0.0] * 101, first=10)
    right = drive([-0.001 * i for i in range(101)], first=10)
    found = row(difference(left, right), "lateral_2s")
    assert found.spread.frames == 101
    assert found.spread.mean == pytest.approx(0.100, rel=1e-5)
    assert found.spread.p99 == pytest.approx(0.198, rel=1e-5)
    assert found.spread.max == pytest.approx(0.200, rel=1e-5)
    assert found.spread.frame == 110
    assert found.bias == pytest.approx(-0.100, rel=1e-5)
    assert found.left == 0.0
    assert found.right == pytest.approx(-0.2, rel=1e-6)
    figures = figures_of(difference(left, right))
    assert figures["lateral_2s_max_m"] == found.spread.max
    assert figures["heading_2s_max_rad"] == 0.0
    assert figures["lateral_acceleration_p99_mps2"] == 0.0


def test_the_worst_frame_is_named_also_where_it_is_the_first() -> None:
    none = Made(lead_prob=0.1)
    left = behaviour_of([message(0, replace(none, aside_mps=0.1)), message(1), message(2, none)])
    # Each log has its lead in another frame: there is no difference, and no worst frame.
    right = behaviour_of([message(0, none), message(1, none), message(2)])
    lines = behaviour_lines(BehaviourVerdict(difference(left, right)), ("old", "new"))
    table = [line.split() for line in "\n".join(lines).splitlines()]
    column = table[1].index("frame")
    shown = {cells[0]: cells[column] for cells in table if len(cells) > column}
    assert shown["lateral_2s"] == "0"
    assert shown["lead_distance"] == "-"


def test_frames_are_matched_by_their_ids_and_begin_with_the_calibration() -> None:
    left = behaviour_of([message(i, valid=i >= 3) for i in range(8)])
    right = behaviour_of([message(i) for i in (9, 7, 7, 5, 4, 3, 2, 1)])
    assert row(difference(left, right), "lateral_1s").spread.frames == 4
    assert row(difference(left, right, uncalibrated=True), "lateral_1s").spread.frames == 6
    never = behaviour_of([message(1, valid=False)])
    assert difference(never, right) == ()
    assert difference(left, behaviour_of([])) == ()


def test_what_appears_and_disappears_is_counted() -> None:
    left = behaviour_of([message(i, Made(lead_prob=0.9 if i < 3 else 0.1)) for i in range(10)])
    right = behaviour_of([message(i, Made(lead_prob=0.9 if i > 1 else 0.1)) for i in range(10)])
    rows = difference(left, right)
    distance = row(rows, "lead_distance")
    assert (distance.lost, distance.new, distance.spread.frames) == (2, 7, 1)
    assert row(rows, "lead_seen").spread.mean == pytest.approx(0.9)
    figures = figures_of(rows)
    assert figures["lead_seen_mean"] == pytest.approx(0.9)
    assert (figures["lead_distance_lost_frames"], figures["lead_distance_max_m"]) == (2.0, 0.0)
    # A figure that neither side has is told from one that only one has.
    none = behaviour_of([message(1, Made(lead_prob=0.1))])
    some = behaviour_of([message(1)])
    assert figures_of(difference(none, none))["lead_distance_max_m"] is None
    one_sided = figures_of(difference(some, none))["lead_distance_max_m"]
    assert one_sided is not None
    assert math.isnan(one_sided)
    # Values that are not finite are missing.
    left = behaviour_of([car_state(0, 20.0), message(0), message(1)])
    lost = message(1, Made(curvature_1pm=math.inf))
    right = behaviour_of([car_state(0, 20.0), message(0), lost])
    found = row(difference(left, right), "drift_2s")
    assert (found.spread.frames, found.lost) == (1, 1)


def test_errors_of_both_logs_against_the_truth() -> None:
    truth = true_behaviour(made_truth(5))
    left = behaviour_of([car_state(0, 20.0), *(message(i) for i in range(5))])
    right = behaviour_of([message(i, Made(left_prob=0.9 if i else 0.1)) for i in range(5)])
    rows = difference(left, right, truth)
    line = row(rows, "left_line_30m")
    # The messages have the left line at -1.8 m + 0.01 x, the truth at -1.7 m.
    assert line.left_error is not None
    assert line.left_error.spread.mean == pytest.approx(0.1, rel=1e-5)
    assert line.right_error is not None
    assert (line.right_error.expected, line.right_error.missed) == (5, 1)
    assert row(rows, "lateral_2s").left_error is not None
    assert row(rows, "lead_seen").left_error is None
    figures = figures_of(rows)
    assert figures["error.left_line_30m_p99_m"] == pytest.approx(0.1, rel=1e-5)
    assert figures["error.left_line_30m_missed_frames"] == 1.0
    # Without the car's speed the right log has no lateral acceleration at all.
    lost = figures["error.lateral_acceleration_max_mps2"]
    assert lost is not None
    assert math.isnan(lost)
    # A truth of nothing leaves nothing to judge.
    seen = made_truth(2)
    none = replace(seen, lane_line_y_m=np.full_like(seen.lane_line_y_m, np.nan))
    log = behaviour_of([message(0), message(1)])
    figures = figures_of(difference(log, log, true_behaviour(none)))
    assert figures["error.left_line_10m_max_m"] is None


FIGURES = [
    *("lateral_2s_mean_m", "lateral_2s_p99_m", "lateral_2s_max_m", "lateral_2s_bias_m"),
    *("lead_distance_lost_frames", "lead_distance_new_frames", "lead_seen_mean"),
    *("error.left_line_10m_mean_m", "error.left_line_10m_p99_m", "error.left_line_10m_max_m"),
    "error.left_line_10m_missed_frames",
]


def test_figures_have_the_names_that_gates_may_use_and_that_documents_name() -> None:
    log = behaviour_of([message(0)])
    with_truth = figures_of(difference(log, log, true_behaviour(made_truth(1))))
    assert set(with_truth) == set(figure_names())
    assert set(figures_of(difference(log, log))) < set(figure_names())
    page = (Path(__file__).parents[3] / "docs/regression.md").read_text(encoding="utf-8")
    for name in FIGURES:
        assert f"`{name}`" in page
        assert name in figure_names()


NAMES = figure_names()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("lateral_2s_max < 0.05", "did you mean lateral_2s_max_m"),
        ("latral_2s_max_m < 0.05", "did you mean lateral_2s_max_m"),
        ("xyzzy < 1", "docs/regression.md lists them"),
        ("latral_*_max_m < 0.1", "expected the name of a figure"),
        ("lateral_2s_max_m", "expected NAME < NUMBER"),
        ("lateral_2s_max_m = 1", "expected NAME < NUMBER"),
        ("lateral_2s_max_m < 0.05 m", "expected NAME < NUMBER"),
        ("lateral_2s_max_m < nan", "expected a finite number"),
        ("lateral_2s_max_m < 1e999", "expected a finite number"),
        ("lateral_2s_max_m < 1_0", "expected a finite number"),
        ("", "expected NAME < NUMBER"),
        ("*l*a*t*e*r*x < 1", "at most 4 *"),
        ("a" * 4000 + " < 1", "expected NAME < NUMBER"),
        (None, "No such file"),
        (b"\xff\xfe", "expected UTF-8 text"),
        (b"lead_seen_mean < 1\n" * (MAX_GATES + 1), f"at most {MAX_GATES}"),
        (b"#" * (80 << 10), "expected at most 65536 bytes"),
        (b"\nlead_seen_mean < x\n", "gates:2: expected a finite number"),
    ],
)
def test_what_is_refused_and_how(tmp_path: Path, given: str | bytes | None, found: str) -> None:
    """A text is a gate, bytes are a file of them, and None is a file that is missing."""
    texts, file = ([given], None) if isinstance(given, str) else ([], tmp_path / "gates")
    if file is not None and isinstance(given, bytes):
        file.write_bytes(given)
    with pytest.raises(UsageError) as error:
        parse_gates(texts, file, NAMES)
    assert found in str(error.value)
    assert len(str(error.value)) < 400


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


def test_gates_from_options_and_a_file_and_on_nothing(tmp_path: Path) -> None:
    gate = Gate("lead_distance_max_m", "<", 1.0)
    (nothing,) = judge({gate.name: None}, [gate])
    assert (nothing.holds, nothing.note) == (True, "nothing to judge")
    (half,) = judge({gate.name: math.nan}, [gate])
    assert (half.holds, half.value) == (False, None)
    (absent,) = judge({}, [gate])
    assert "truth" in absent.text
    assert (absent.holds, absent.text) == (False, f"{absent.gate}: {absent.note}")
    file = tmp_path / "fp16.gates"
    file.write_text("# fp16\n\nlateral_1s_max_m<=5e-2  # one lane in 60\n", encoding="utf-8")
    gates = parse_gates(["lead_seen_mean < .01"], file, NAMES)
    assert gates == (Gate("lead_seen_mean", "<", 0.01), Gate("lateral_1s_max_m", "<=", 0.05))
    assert gates[1].text == "lateral_1s_max_m <= 0.05"
    # A star names figures that exist.
    assert parse_gates(["lateral_*_max_m < 0.1"], None, NAMES)[0].name == "lateral_*_max_m"


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
    assert worst.text == "*.*.offset_p99_m < 0.7: 0.8 (scenarios.lead.offset_p99_m)"
    (least,) = judge(figures, [Gate("scenarios.*.offset_p99_m", ">", 0.1)])
    assert (least.name, least.holds) == ("scenarios.curve.offset_p99_m", True)
    # A star does not reach the errors.
    figures = {"lateral_2s_max_m": 0.1, "error.lateral_2s_max_m": 3.0}
    for name in ("lateral_*_max_m", "*_max_m"):
        assert judge(figures, [Gate(name, "<", 0.2)])[0].holds
    (verdict,) = judge(figures, [Gate("error.*_max_m", "<", 0.2)])
    assert (verdict.name, verdict.holds) == ("error.lateral_2s_max_m", False)
