"""The reference's own rules against numbers worked by hand, and that it knows nothing of ours."""

import ast
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reference_loop.actions import T, acceleration_from_plan, curvature_from_plan, smoothed
from tests.reference_loop.compare import differences
from tests.reference_loop.confidence import GREEN, RED, YELLOW, Confidence, HardBrake, slices_of
from tests.reference_loop.histories import Images, Past
from tests.reference_loop.lane_change import (
    DESIRE_LEFT,
    FINISHING,
    LEFT,
    NO_DESIRE,
    OFF,
    PRE,
    STARTING,
    Driver,
    Machine,
    MachineA,
    MachineB,
)
from tests.reference_loop.parse import parse
from tests.reference_loop.transforms import ROAD_VIEW, Lens, transform
from tests.reference_loop.warps import Picture, bilinear, half_of_bilinear, nearest, view

OURS = {"cereal", "runtime", "scheduler", "modeld", "tools"}
# Beside the reference: what plays a drive through the product, and the tests.
BESIDE = {"product.py", "drive.py", "conftest.py"}


def test_the_reference_imports_nothing_of_the_packages() -> None:
    files = [p for p in Path(__file__).parent.glob("*.py") if p.name not in BESIDE]
    files = [p for p in files if not p.name.startswith("test_")]
    assert len(files) >= 10
    allowed = {f"tests.reference_loop.{path.stem}" for path in files}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names.append(str(node.module))
            for name in names:
                assert name.split(".")[0] not in OURS, (path.name, name)
                assert not name.startswith("tests") or name in allowed, (path.name, name)


# --- pictures -----------------------------------------------------------------------------------

PLANE = np.array([[0, 100], [50, 200]], np.uint8)


def matrix(*rows: tuple[float, float, float]) -> np.ndarray:
    return np.array(rows, np.float32)


def moved(x: float, y: float = 0.0) -> np.ndarray:
    return matrix((1, 0, x), (0, 1, y), (0, 0, 1))


NOTHING = np.zeros((3, 3), np.float32)


@pytest.mark.parametrize(
    ("warp", "m", "seen"),
    [
        # Half a pixel right and down: the mean of four, 87.5, rounds up; the border repeats.
        (bilinear, moved(0.5, 0.5), [[88, 150], [125, 200]]),
        # 1/32 of the way from 0 to 100: 3.125; less than half of 1/32 is none of it.
        (bilinear, moved(1 / 32), [[3]]),
        (bilinear, moved(1 / 70), [[0]]),
        (bilinear, NOTHING, [[0, 0], [0, 0]]),
        # 0.5 and 1.5 round to even: 0 and 2, which the border makes 1.
        (nearest, moved(0.5), [[0, 100], [50, 200]]),
        (nearest, matrix((0, 0, 6), (0, 0, 6), (0, 0, 6)), [[200]]),
        (nearest, NOTHING, [[0, 0], [0, 0]]),
    ],
)
def test_warps_by_hand(warp: Any, m: np.ndarray, seen: list[list[int]]) -> None:
    size = (len(seen), len(seen[0]))
    assert warp(PLANE, m, size).tolist() == seen
    # Columns of a wider buffer are no part of the plane.
    assert warp(np.tile(PLANE, 3)[:, 2:4], m, size).tolist() == seen


def test_chroma_of_both_modes_differs_by_half_a_pixel() -> None:
    # 4 x 4 luma, twice as large as the view's pixels; U is 0 on the left and 200 on the right.
    uv = np.array([[0, 1, 200, 2], [0, 3, 200, 4]], np.uint8)
    data = np.concatenate([np.zeros(16, np.uint8), uv.reshape(-1)])
    picture = Picture(data, 4, 4, 4, 16, "edge")
    # Half of the view's scale: view pixel x stands at x/2 of the picture.
    half = matrix((0.5, 0, 0), (0, 0.5, 0), (0, 0, 1))
    # Pixel 1 of the half view: bilinear at (0.5*(2 + .5) - .5)/2 = 0.375, nearest at 0.5 -> 0.
    assert view(picture, half, "bilinear")[4, 0, :3].tolist() == [0, 75, 175]
    assert view(picture, half, "nearest")[4, 0, :3].tolist() == [0, 0, 200]
    assert half_of_bilinear(half)[0].tolist() == [0.5, 0.0, -0.125]


def test_channels_are_rows_before_columns() -> None:
    luma = np.arange(256 * 512, dtype=np.uint32).astype(np.uint8)
    data = np.concatenate([luma, np.zeros(256 * 256, np.uint8)])
    found = view(Picture(data, 512, 256, 512, 256 * 512, 0), np.eye(3, dtype=np.float32), "nearest")
    rows = luma.reshape(256, 512)
    assert found[:4, 0, 0].tolist() == [rows[0, 0], rows[1, 0], rows[0, 1], rows[1, 1]]


def test_transform_by_hand() -> None:
    def seen(rpy: tuple[float, float, float], x: float = 256) -> Any:
        point = transform(Lens(1928, 1208, 2648.0), ROAD_VIEW, rpy) @ [x, 47.6, 1]
        return point[:2] / point[2]

    # Level: the model's point (256, 47.6) is the middle of the picture; 10 px are 10 * 2648/910.
    assert seen((0, 0, 0)) == pytest.approx([964, 604], rel=1e-5)
    assert seen((0, 0, 0), x=266) == pytest.approx([964 + 29.0989, 604], rel=1e-5)
    # Looking 0.1 rad down (pitch < 0 about y to the right): the level point lies above the middle.
    assert seen((0, -0.1, 0))[1] == pytest.approx(604 + 2648 * math.tan(0.1), rel=1e-5)
    # Turned 0.1 rad to the right (yaw > 0 about z down).
    assert seen((0, 0, 0.1))[0] == pytest.approx(964 + 2648 * math.tan(0.1), rel=1e-5)


# --- histories and heads ------------------------------------------------------------------------


def test_histories_by_hand() -> None:
    past = Past((1,))
    for value in range(1, 6):
        past.push(np.array([value]))
    assert past.at((-5, -4, -1, 0)).reshape(-1).tolist() == [0, 1, 4, 5]
    assert past.largest(2, 4).reshape(-1).tolist() == [1, 5]
    images = Images()
    for value in range(6):
        images.push(np.full((6, 128, 256), value, np.uint8))
        assert images.pair(4)[[0, 6], 0, 0].tolist() == [max(0, value - 4), value]
    assert images.pair(1)[[0, 6], 0, 0].tolist() == [4, 5]


def test_parsing_by_hand() -> None:
    found = parse(
        {
            "action": np.array([1, 2, 0, 20], np.float32),
            "lead_prob": np.array([0, math.log(3), -math.log(3)], np.float32),
            "desire_state": np.array([math.log(2)] + [0] * 7, np.float32),
        }
    )
    assert found["action"].tolist() == [1, 2]
    assert found["action_stds"] == pytest.approx([1, math.exp(11)])
    assert found["lead_prob"] == pytest.approx([0.5, 0.75, 0.25], rel=1e-6)
    assert found["desire_state"] == pytest.approx([2 / 9] + [1 / 9] * 7, rel=1e-6)


def test_mixtures_by_hand() -> None:
    # Two hypotheses of 24 means, 24 log deviations and three logits; the second one wins the third.
    rows = np.zeros((2, 51), np.float32)
    rows[0, :24], rows[1, :24] = 1, 2
    rows[1, 24:48] = math.log(3)
    rows[0, 48:], rows[1, 48:] = (5, 5, 0), (0, 0, 5)
    found = parse({"lead": rows.reshape(-1)})
    assert found["lead"][:, 0, 0].tolist() == [1, 1, 2]
    assert found["lead_stds"][:, 0, 0] == pytest.approx([1, 1, 3])
    plan = np.zeros((5, 991), np.float32)
    plan[:, 0] = range(5)
    plan[3, 990] = 1
    found = parse({"plan": plan.reshape(-1), "planplus": np.full(990, 0.5, np.float32)})
    assert found["plan"][0, :2].tolist() == [3.5, 0.5]
    assert found["plan_stds"][0, 0] == 1


# --- rules --------------------------------------------------------------------------------------


def test_actions_by_hand() -> None:
    plan = np.zeros((33, 15))
    plan[:, 3] = 10 + 1.5 * np.array(T)
    plan[:, 6] = 1.5
    assert acceleration_from_plan(plan, 0.5) == (pytest.approx(1.5), False)
    plan[:, 3] = np.where(np.array(T) < 0.9, 0.04, 0.06)
    assert acceleration_from_plan(plan, 0.5)[1] is False
    plan[:, 3] = 0.04
    assert acceleration_from_plan(plan, 0.5)[1] is True
    # A yaw rate of 0.2 rad/s at 10 m/s is 0.02 1/m whenever it is looked up.
    plan[:, 11], plan[:, 14] = 0.2 * np.array(T), 0.2
    assert curvature_from_plan(plan, 10.0, 0.4) == pytest.approx(0.02)
    assert curvature_from_plan(plan, 0.2, 0.4) == pytest.approx(0.2)
    assert smoothed(1.0, 0.0, 0.1) == pytest.approx(0.39346934)
    assert smoothed(1.0, 0.0, 0.0) == 1.0


def test_confidence_by_hand() -> None:
    # Cumulative chances 0.1 .. 0.5 of one cause: (0.1, 0.1/0.9, 0.1/0.8, 0.1/0.7, 0.1/0.6).
    cause, none, sure = [0.1, 0.2, 0.3, 0.4, 0.5], [0.0] * 5, [1.0] * 5
    expected = [0.1, 0.1 / 0.9, 0.1 / 0.8, 0.1 / 0.7, 0.1 / 0.6]
    assert slices_of([cause, none, none]) == pytest.approx(expected)
    assert slices_of([sure, none, none]) == sure
    grades = Confidence()
    assert grades.step(1, [sure] * 3) == GREEN
    # One row: its first column counts, 0.1 / 5 = 0.02 is yellow; 1 / 5 is red.
    assert grades.step(40, [cause, none, none]) == YELLOW
    assert grades.step(80, [sure, none, none]) == RED


def test_hard_brake_by_hand() -> None:
    brake = HardBrake()
    chances = [(0.06, 0.0), (0.06, 0.0), (0.16, 0.0), (0.16, 0.71), (0.16, 0.71)]
    assert [brake.step(*pair) for pair in chances] == [False] * 4 + [True]
    assert brake.step(0.16, 0.71) is True
    assert brake.step(0.15, 0.71) is False


PULL_LEFT = Driver(
    20.0, left_blinker=True, steering_pressed=True, steering_torque=1.0, lat_active=True
)
QUIET = Driver(20.0, lat_active=True)


def started(machine: Machine, quiet: int) -> list[int]:
    """Start a change to the left; the states of so many frames after it."""
    assert machine.step(PULL_LEFT, 0.9) == NO_DESIRE
    assert (machine.state, machine.direction) == (PRE, LEFT)
    assert machine.step(PULL_LEFT, 0.9) == DESIRE_LEFT
    states = []
    for _ in range(quiet):
        machine.step(QUIET, 0.0)
        states.append(machine.state)
    return states


def test_machine_a_by_hand() -> None:
    machine = MachineA()
    # Ten frames fade out the lines, then the model says it is done; twenty fade them in.
    assert started(machine, 30) == [STARTING] * 9 + [FINISHING] * 20 + [OFF]
    machine.step(PULL_LEFT, 0.0)
    assert machine.step(Driver(20.0, left_blinker=True), 0.0) == NO_DESIRE
    assert machine.state == OFF


def test_machine_b_by_hand() -> None:
    machine = MachineB()
    assert started(machine, 11) == [STARTING] * 10 + [OFF]
    # A blinker that was on before steering was active is an edge when it becomes so.
    machine.step(Driver(20.0, left_blinker=True), 0.0)
    machine.step(Driver(20.0, left_blinker=True, lat_active=True), 0.0)
    assert machine.state == PRE


@pytest.mark.parametrize("kind", [MachineA, MachineB])
def test_both_machines_give_up_after_ten_seconds(kind: type[Machine]) -> None:
    machine = kind()
    started(machine, 0)
    frames = 1
    while machine.step(PULL_LEFT, 0.9) == DESIRE_LEFT:
        frames += 1
    assert 199 <= frames <= 201
    assert machine.state == OFF


# --- the comparison -----------------------------------------------------------------------------


def message(**fields: object) -> dict[str, dict[str, Any]]:
    return {"m": {"id": 3, "list": [0.0, 1000.0], "lines": [{"t": [0.5]}], **fields}}


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (message(list=[0.11, 1000.0]), "m.list"),
        (message(list=[0.0, math.nan]), "m.list"),
        (message(list=[0.0]), "m.list"),
        (message(id=4), "m.id"),
        (message(lines=[{"t": [0.50001]}]), "m.lines.t"),
        (message(extra=[1.0]), "m.extra"),
    ],
)
def test_a_field_that_differs_is_named(other: dict[str, dict[str, Any]], field: str) -> None:
    (line,) = differences([message(), None, message()], [other, None, message()])
    assert line.startswith(field)


def test_what_is_equal_enough_and_who_is_silent() -> None:
    same: list[Any] = [message(), None, message()]
    assert differences(same, same) == []
    assert differences(same, [message(list=[0.09, 999.91]), None, message(extra=[], none=0)]) == []
    (line,) = differences(same, [message(), message(), None])
    assert "[1, 2]" in line
