"""What is commanded counts more than the rest of a plan, and hard braking is learnt more often."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from modeld.actions import acceleration_from_plan, curvature_from_plan
from modeld.constants import T_IDXS
from modeld.desire import Desire
from tools.training.commanding import NEXT, CommandLoss, accelerations, times_learnt, turns
from tools.training.drives import DriveRecord
from tools.training.heads import HIDDEN_WIDTH, HISTORY_ROWS, PLAN, POLICY_HEADS, Singles, size_of
from tools.training.histories import join
from tools.training.networks import Policy
from tools.training.policy_figures import command_errors
from tools.training.scaling import Scaling

PLAIN = Scaling(np.zeros(PLAN.size, np.float32), np.ones(PLAN.size, np.float32))


def losses(target: torch.Tensor, row: int, column: int, apart: float) -> float:
    """Return the loss of a plan that is wrong in one value by so much."""
    output = torch.zeros((1, PLAN.width))
    output[:, : PLAN.size] = target[:, : PLAN.size]
    output[0, 15 * row + column] += apart
    return CommandLoss(PLAIN)(output, target).item()


def test_loss_is_of_what_is_commanded_within_two_seconds() -> None:
    target = torch.zeros((1, size_of(POLICY_HEADS)))
    # 10 s (i / 32)^2: the 15th is the last one before 2 s, and one more is asked for after it.
    assert (NEXT, T_IDXS[NEXT - 2] < 2.0 < T_IDXS[NEXT - 1]) == (16, True)
    for row, column in ((1, 6), (15, 11), (12, 14)):
        assert losses(target, row, column, -0.8) == pytest.approx(0.8 * 3.0 / 16.0)
    for row, column in ((16, 6), (3, 1), (20, 3)):
        assert losses(target, row, column, -0.8) == 0.0


def test_speeds_that_are_all_wrong_alike_command_nothing_but_the_present_one_counts() -> None:
    target = torch.zeros((1, size_of(POLICY_HEADS)))
    output = torch.zeros((1, PLAN.width))
    output[:, 3 : PLAN.size : 15] -= 0.1
    assert CommandLoss(PLAIN)(output, target).item() == pytest.approx(0.1 * 30.0)


def test_commands_are_learnt_as_the_daemon_makes_them() -> None:
    rng = np.random.default_rng(0)
    plan = rng.normal(0.0, 1.0, (33, 15)).astype(np.float32)
    read = torch.from_numpy(plan[None])
    expected = [acceleration_from_plan(plan, T_IDXS[i])[0] for i in range(6, 11)]
    np.testing.assert_allclose(accelerations(read)[0].numpy(), expected, rtol=1e-4)
    expected = [12.0 * curvature_from_plan(plan, 12.0, T_IDXS[i]) for i in range(5, 8)]
    np.testing.assert_allclose(turns(read)[0].numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize(("speed_mps", "times"), [(8.0, 3.0), (20.0, 6.0)])
def test_too_little_braking_counts_more_where_braking_is_right_and_driving_is_fast(
    speed_mps: float, times: float
) -> None:
    free = torch.zeros((1, size_of(POLICY_HEADS)))
    braking = free.clone()
    # 1 m/s2 of braking in speeds and acceleration: 2 (v(t) - v(0)) / t + 1 is -1.
    braking[0, 3 : PLAN.size : 15] = torch.from_numpy(speed_mps - T_IDXS.astype(np.float32))
    braking[0, 6 : PLAN.size : 15] = -1.0
    own = 0.6 * 3.0 / 16.0
    # Less acceleration now means more of a command, at each of five times.
    assert losses(free, 0, 6, -0.6) == pytest.approx(own + 4.0 * 0.6)
    assert losses(free, 0, 6, 0.6) == pytest.approx(own + 4.0 * 0.6)
    assert losses(braking, 0, 6, -0.6) == pytest.approx(own + 4.0 * times * 0.6, rel=1e-4)
    assert losses(braking, 0, 6, 0.6) == pytest.approx(own + 4.0 * 0.6, rel=1e-4)
    # One of five speeds.
    wrong = 2.0 * 0.6 / T_IDXS[8] / 5.0
    assert losses(braking, 8, 3, 0.6) == pytest.approx(4.0 * times * wrong, rel=1e-4)
    # One of three yaws at that speed, and its own part.
    wrong = speed_mps * 2.0 * 0.01 / T_IDXS[5] / 3.0
    assert losses(braking, 5, 11, 0.01) == pytest.approx(4.0 * wrong + 0.03 / 16.0, rel=1e-3)


def targets(*hardest_mps2: float) -> Singles:
    """Return a row for each: a plan that brakes so hard after a second."""
    found = np.zeros((len(hardest_mps2), size_of(POLICY_HEADS)), np.float32)
    found[:, 15 * 10 + 6] = hardest_mps2
    # Later braking is not commanded yet.
    found[:, 15 * 20 + 6] = -6.0
    return found


def test_histories_that_end_in_hard_braking_are_there_several_times() -> None:
    assert times_learnt(targets(0.5, -1.0, -1.5, -2.6)).tolist() == [1, 1, 2, 4]
    rows = targets(0.0, -3.0, -1.3)
    features, pulses = np.zeros((3, HIDDEN_WIDTH), np.float16), np.zeros((3, 8), np.float32)
    drive = DriveRecord(features, features, rows, pulses, True, np.zeros(3, np.float32))
    scaling = Scaling(np.zeros(PLAN.size, np.float32), np.full(PLAN.size, 2.0, np.float32))
    histories = join([drive], scaling)
    first = HISTORY_ROWS - 1
    each = [first, *[first + 1] * 4, *[first + 2] * 2]
    # And once more as in a mirror.
    assert histories.rows.tolist() == [*each, *(row + first + 3 for row in each)]
    # In units of the scaling.
    assert histories.targets[first + 1, 15 * 10 + 6].item() == pytest.approx(-1.5)


def test_drives_are_learnt_from_as_they_were_and_as_in_a_mirror() -> None:
    rows, pulses = targets(0.0, 0.0), np.zeros((2, 8), np.float32)
    rows[:, 1], pulses[1, Desire.LANE_CHANGE_LEFT] = 0.5, 1.0
    seen, mirrored = (np.full((2, HIDDEN_WIDTH), x, np.float16) for x in (1.0, 2.0))
    drive = DriveRecord(seen, mirrored, rows, pulses, True, np.zeros(2, np.float32))
    histories = join([drive], PLAIN)
    ends = histories.rows
    assert histories.features[ends, 0].tolist() == [1.0, 1.0, 2.0, 2.0]
    # To the right of the middle of the lane one drives back to the left, and the other way round.
    assert histories.targets[ends, 1].tolist() == [0.5, 0.5, -0.5, -0.5]
    assert histories.pulses[ends].argmax(1).tolist() == [
        0,
        Desire.LANE_CHANGE_LEFT,
        0,
        Desire.LANE_CHANGE_RIGHT,
    ]
    # Worlds drive on the right, their mirrors on the left.
    assert histories.conventions[ends].tolist() == [[1.0, 0.0]] * 2 + [[0.0, 1.0]] * 2
    # Before a drive there is nothing.
    assert histories.present.tolist() == ([0.0] * (HISTORY_ROWS - 1) + [1.0] * 2) * 2


def test_a_policy_is_judged_by_what_it_commands() -> None:
    # A policy that says the same of everything: 12 m/s, braking by 1 m/s2, to the right.
    policy = Policy()
    torch.nn.init.zeros_(policy.plan.last.weight)
    plan = policy.plan.last.bias.data[: PLAN.size].reshape(33, 15)
    plan[:, 3] = torch.from_numpy(12.0 - T_IDXS.astype(np.float32))
    plan[:, 6], plan[:, 11] = -1.0, 0.01 * torch.from_numpy(T_IDXS.astype(np.float32))
    plan[:, 14] = 0.01
    # Every fifth of ten rows, the first of which is gentle, and once more in a mirror.
    rows = np.zeros((10, size_of(POLICY_HEADS)), np.float32)
    rows[:, 3 : PLAN.size : 15] = 10.0
    rows[5, 3 : PLAN.size : 15] = 10.0 - 4.0 * T_IDXS
    rows[5, 6 : PLAN.size : 15] = -4.0
    features, pulses = np.zeros((10, HIDDEN_WIDTH), np.float16), np.zeros((10, 8), np.float32)
    drive = DriveRecord(features, features, rows, pulses, True, np.zeros(10, np.float32))
    errors = command_errors(policy, join([drive], PLAIN), PLAIN)
    assert errors == {
        "own speed, m/s": pytest.approx(2.0, rel=1e-3),
        # Of 0 and -4 it asks for -1.
        "acceleration, m/s2": pytest.approx(2.0, rel=1e-2),
        "hard braking, mean, m/s2": pytest.approx(3.0, rel=1e-2),
        "hard braking, m/s2": pytest.approx(3.0, rel=1e-2),
        "lateral, m/s2": pytest.approx(0.1, rel=1e-2),
    }
    gentle = dataclasses.replace(drive, targets=rows[:5], features=features[:5])
    gentle = dataclasses.replace(gentle, mirrored=features[:5], pulses=pulses[:5])
    found = command_errors(policy, join([gentle], PLAIN), PLAIN)
    assert set(errors) - set(found) == {"hard braking, mean, m/s2", "hard braking, m/s2"}
