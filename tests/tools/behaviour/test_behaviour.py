"""Quantities taken from messages and from the truth, against values computed by hand."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.schema import new_event
from modeld.constants import T_IDXS, X_IDXS
from tests.tools.behaviour.made_models import Made, car_state, made_truth, message
from tools.behaviour.quantities import (
    QUANTITIES,
    Behaviour,
    BehaviourReader,
    behaviour_of,
    place_of,
    true_behaviour,
)
from tools.behaviour.truth import read_truth
from tools.errors import CompareError


def value(behaviour: Behaviour, name: str) -> float:
    return float(behaviour.of(name)[0])


def test_a_place_between_the_model_times() -> None:
    # T_IDXS is 10 (i / 32)^2: 1 s lies between samples 10 and 11, at 0.9765625 and 1.1816406 s.
    index, share = place_of(T_IDXS, 1.0)
    assert index == 10
    assert share == pytest.approx((1.0 - 0.9765625) / (1.181640625 - 0.9765625))
    assert place_of(X_IDXS, 192.0) == (31, 1.0)
    found = behaviour_of([car_state(7, 20.0), message(7, Made(braking_mps2=0.5))])
    assert (found.frame_ids.tolist(), found.valid.tolist()) == ([7], [True])
    for time_s in (1, 2, 4):
        assert value(found, f"lateral_{time_s}s") == pytest.approx(0.3 * time_s, rel=1e-6)
        assert value(found, f"heading_{time_s}s") == pytest.approx(0.02 * time_s, rel=1e-6)
        assert value(found, f"speed_{time_s}s") == pytest.approx(20.0 - 0.5 * time_s, rel=1e-6)


def test_curvature_becomes_acceleration_and_drift_at_the_speed_of_the_car() -> None:
    found = behaviour_of([message(7)])
    assert math.isnan(value(found, "lateral_acceleration"))  # without a speed there is none
    assert value(found, "lateral_2s") == pytest.approx(0.6, rel=1e-6)
    found = behaviour_of([car_state(7, 20.0), message(7)])
    # 0.002 / m at 20 m/s: 0.002 * 400 m/s2; in 2 s 0.5 * 0.002 * 40^2 m.
    assert value(found, "lateral_acceleration") == pytest.approx(0.8, rel=1e-6)
    assert value(found, "drift_2s") == pytest.approx(1.6, rel=1e-6)
    assert value(found, "acceleration") == -0.5
    given = behaviour_of([car_state(7, 20.0), message(7)], {7: 10.0})
    assert value(given, "lateral_acceleration") == pytest.approx(0.2, rel=1e-6)


def test_lines_edges_and_leads() -> None:
    found = behaviour_of([message(7, Made(left_prob=0.51, lead_prob=0.51))])
    for name, expected in {
        "left_line_10m": -1.7, "right_line_30m": 2.1, "left_line_prob": 0.51,
        "left_edge_10m": -6.0, "right_edge_30m": 6.0, "lead_seen": 1.0,
        "lead_distance": 40.0, "lead_speed": 15.0, "should_stop": 0.0,
    }.items():  # fmt: skip
        assert value(found, name) == pytest.approx(expected, rel=1e-6)
    # What is not seen has no place.
    found = behaviour_of([message(7, Made(left_prob=0.49, lead_prob=0.49))])
    assert value(found, "left_line_prob") == pytest.approx(0.49)
    assert value(found, "lead_seen") == 0.0
    assert math.isnan(value(found, "left_line_10m"))
    assert math.isnan(value(found, "lead_distance"))


def test_a_message_without_curves_or_leads_and_a_damaged_one() -> None:
    bare = new_event("modelV2", mono_time_ns=1).to_bytes()
    found = behaviour_of([bare, message(7)[:-40], b"", message(8)])
    assert found.frame_ids.tolist() == [0, 8]
    nothing = {"lateral_2s", "left_line_10m", "left_edge_10m", "lead_prob", "lead_seen"}
    assert all(math.isnan(value(found, name)) for name in nothing)
    # A reader passes everything on.
    events = [car_state(1, 10.0), message(1), car_state(2, 20.0), message(2, valid=False)]
    reader = BehaviourReader()
    assert list(reader.watch(iter(events))) == events
    found = reader.behaviour()
    assert found.of("lateral_acceleration") == pytest.approx([0.2, 0.8], rel=1e-6)
    assert found.valid.tolist() == [True, False]


PAGE = (Path(__file__).parents[3] / "docs/regression.md").read_text(encoding="utf-8")


def test_names_are_told_apart_and_documented_and_every_truth_has_the_shape_of_its_frames() -> None:
    names = [quantity.name for quantity in QUANTITIES]
    assert len(set(names)) == len(names)
    truth = made_truth(3)
    for quantity in QUANTITIES:
        if quantity.truth is not None:
            assert quantity.truth(truth).shape == (3,)
    # The table of docs/regression.md has every quantity and no other.
    section = PAGE.partition("| quantity | unit | meaning | known to the truth |")[2]
    table = section.partition("\n\n")[0].splitlines()[2:]
    rows = [line.strip("| ").split(" | ") for line in table]
    documented = {(name, unit, truth) for row, unit, _, truth in rows for name in row.split(", ")}
    assert documented == {
        (one.name, one.unit or "-", "yes" if one.truth else "no") for one in QUANTITIES
    }


def test_truth_and_messages_that_say_the_same_are_the_same() -> None:
    true = true_behaviour(made_truth(1))
    found = behaviour_of([car_state(0, 20.0), message(0, Made(left_m=-1.7))])
    for quantity in QUANTITIES:
        if quantity.truth is not None and not quantity.name.endswith("prob"):
            expected = pytest.approx(value(found, quantity.name), rel=1e-6)
            assert value(true, quantity.name) == expected
    assert value(true, "left_line_prob") == 1.0
    assert math.isnan(value(true, "lead_seen"))


def write(path: Path, first: int = 0, **changes: Any) -> Path:
    truth = made_truth(4)
    columns: dict[str, Any] = asdict(truth)
    columns |= {"frame_id": truth.frame_id + first, **changes}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: value for name, value in columns.items() if value is not None})
    return path


def test_a_file_a_segment_and_a_route(tmp_path: Path) -> None:
    one = write(tmp_path / "route--0" / "truth.npz")
    write(tmp_path / "route--1" / "truth.npz", first=4)
    assert read_truth(one).frame_id.tolist() == [0, 1, 2, 3]
    assert read_truth(one.parent).frame_id.tolist() == [0, 1, 2, 3]
    both = read_truth(tmp_path)
    assert both.frame_id.tolist() == list(range(8))
    assert both.lane_line_y_m.shape == (8, 4, 33)
    # None or a damaged one is one line.
    with pytest.raises(CompareError, match=r"expected truth\.npz of a rendered drive, found none"):
        read_truth(tmp_path / "none")
    path = tmp_path / "truth.npz"
    whole = write(path).read_bytes()
    for content in (b"PK nothing", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(CompareError, match="expected the truth of a rendered drive"):
            read_truth(path)


def test_the_truth_is_read_at_its_own_times_and_distances(tmp_path: Path) -> None:
    """A fault of the code's own times must not make the truth useless, which has the others."""
    linear_s = np.linspace(0.0, 10.0, 33)
    path = np.stack([20.0 * linear_s, 0.3 * linear_s], axis=1)
    write(
        tmp_path / "truth.npz",
        t_s=linear_s,
        path_xy_m=np.repeat(path[None], 4, 0),
        x_m=np.linspace(0.0, 320.0, 33),
    )
    found = true_behaviour(read_truth(tmp_path))
    assert value(found, "lateral_2s") == pytest.approx(0.6)
    # The rows are those of X_IDXS; at 10 m the second of them counts.
    assert value(found, "right_line_10m") == pytest.approx(1.8 + 0.01 * X_IDXS[1])
    write(tmp_path / "route" / "a" / "truth.npz")
    write(tmp_path / "route" / "b" / "truth.npz", t_s=linear_s)
    with pytest.raises(CompareError, match="expected the same t_s in all segments"):
        read_truth(tmp_path / "route")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"lead_xyv": None}, "no key lead_xyv"),
        ({"speed_mps": np.zeros(3)}, r"speed_mps of float64\[3\]"),
        ({"speed_mps": np.zeros(4, np.int64)}, r"speed_mps of int64\[4\]"),
        ({"t_s": T_IDXS + 1.0}, "t_s that does not rise from 0"),
        ({"x_m": np.zeros(33)}, "x_m that does not rise from 0"),
        ({"x_m": np.arange(30.0)}, r"x_m of float64\[30\]"),
        ({"frame_id": np.zeros(4)}, r"frame_id of float64\[4\]"),
        ({"path_yaw_rad": np.array([{}], object)}, "found ValueError"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, changes: dict[str, Any], found: str) -> None:
    path = write(tmp_path / "truth.npz", **changes)
    with pytest.raises(CompareError, match=found):
        read_truth(path)
