"""What is commanded counts more than the rest of a plan, and hard braking is learnt more often."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from modeld.constants import T_IDXS
from modeld.outputs.verdict import acceleration_from_plan, curvature_from_plan
from modeld.vehicle.desire import Desire
from tools.simulator.training.heads import (
    HIDDEN_WIDTH,
    HISTORY_ROWS,
    PLAN,
    POLICY_HEADS,
    Scaling,
    Singles,
    size_of,
)
from tools.simulator.training.networks.networks import Policy
from tools.simulator.training.policy_stage import command_errors
from tools.simulator.training.samples.drives import DriveRecord
from tools.simulator.training.samples.histories import (
    NEXT,
    CommandLoss,
    accelerations,
    join,
    times_learnt,
    turns,
)

PLAIN = Scaling(np.zeros(PLAN.size, np.float32), np.ones(PLAN.size, np.float32))
FREE = torch.zeros((1, size_of(POLICY_HEADS)))
LEFT, RIGHT = Desire.LANE_CHANGE_LEFT, Desire.LANE_CHANGE_RIGHT


def loss_of(target: torch.Tensor, row: int | slice, column: int, apart: float) -> float:
    """Return the loss of a plan that is wrong in one value, or some rows of it, by so much."""
    output = torch.zeros((1, PLAN.width))
    output[:, : PLAN.size] = target[:, : PLAN.size]
    output[0, : PLAN.size].view(33, 15)[row, column] += apart
    return CommandLoss(PLAIN)(output, target).item()


def test_loss_is_of_what_is_commanded_within_two_seconds() -> None:
    # 10 s (i / 32)^2: the 15th is the last one before 2 s, and one more is asked for after it.
    assert (NEXT, T_IDXS[NEXT - 2] < 2.0 < T_IDXS[NEXT - 1]) == (16, True)
    for row, column in ((1, 6), (15, 11), (12, 14)):
        assert loss_of(FREE, row, column, -0.8) == pytest.approx(0.8 * 3.0 / 16.0)
    for row, column in ((16, 6), (3, 1), (20, 3)):
        assert loss_of(FREE, row, column, -0.8) == 0.0
    # Speeds that are all wrong alike command nothing, but the present one counts.
    assert loss_of(FREE, slice(None), 3, -0.1) == pytest.approx(0.1 * 30.0)


def test_commands_are_learnt_as_the_daemon_makes_them() -> None:
    plan = np.random.default_rng(0).normal(0.0, 1.0, (33, 15)).astype(np.float32)
    read = torch.from_numpy(plan[None])
    expected = [acceleration_from_plan(plan, T_IDXS[i])[0] for i in range(6, 11)]
    np.testing.assert_allclose(accelerations(read)[0].numpy(), expected, rtol=1e-4)
    expected = [12.0 * curvature_from_plan(plan, 12.0, T_IDXS[i]) for i in range(5, 8)]
    np.testing.assert_allclose(turns(read)[0].numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize(("speed_mps", "times"), [(8.0, 3.0), (20.0, 6.0)])
def test_too_little_braking_counts_more_where_braking_is_right_and_driving_is_fast(
    speed_mps: float, times: float
) -> None:
    # 1 m/s2 of braking in speeds and acceleration: 2 (v(t) - v(0)) / t + 1 is -1.
    braking = FREE.clone()
    plan = braking[0, : PLAN.size].view(33, 15)
    plan[:, 3], plan[:, 6] = torch.from_numpy(speed_mps - T_IDXS.astype(np.float32)), -1.0
    own = 0.6 * 3.0 / 16.0
    # Less acceleration now means more of a command, at each of five times.
    for target, apart, factor in (
        (FREE, -0.6, 1.0),
        (FREE, 0.6, 1.0),
        (braking, -0.6, times),
        (braking, 0.6, 1.0),
    ):
        wanted = own + 4.0 * factor * 0.6
        assert loss_of(target, 0, 6, apart) == pytest.approx(wanted, rel=1e-4)
    # One of five speeds.
    wrong = 2.0 * 0.6 / T_IDXS[8] / 5.0
    assert loss_of(braking, 8, 3, 0.6) == pytest.approx(4.0 * times * wrong, rel=1e-4)
    # One of three yaws at that speed, and its own part.
    wrong = speed_mps * 2.0 * 0.01 / T_IDXS[5] / 3.0
    assert loss_of(braking, 5, 11, 0.01) == pytest.approx(4.0 * wrong + 0.03 / 16.0, rel=1e-3)


def targets(*hardest_mps2: float) -> Singles:
    """Return a row for each: a plan that brakes so hard after a second."""
    found = np.zeros((len(hardest_mps2), size_of(POLICY_HEADS)), np.float32)
    found[:, 15 * 10 + 6] = hardest_mps2
    # Later braking is not commanded yet.
    found[:, 15 * 20 + 6] = -6.0
    return found


def drive_of(rows: Singles, seen: float = 0.0, mirrored: float = 0.0) -> DriveRecord:
    count = len(rows)
    first, second = (np.full((count, HIDDEN_WIDTH), x, np.float16) for x in (seen, mirrored))
    pulses = np.zeros((count, 8), np.float32)
    return DriveRecord(first, second, rows, pulses, True, np.zeros(count, np.float32))


def test_histories_that_end_in_hard_braking_are_there_several_times() -> None:
    assert times_learnt(targets(0.5, -1.0, -1.5, -2.6)).tolist() == [1, 1, 2, 4]
    scaling = Scaling(np.zeros(PLAN.size, np.float32), np.full(PLAN.size, 2.0, np.float32))
    histories, first = join([drive_of(targets(0.0, -3.0, -1.3))], scaling), HISTORY_ROWS - 1
    each = [first, *[first + 1] * 4, *[first + 2] * 2]
    # And once more as in a mirror.
    assert histories.rows.tolist() == [*each, *(row + first + 3 for row in each)]
    # In units of the scaling.
    assert histories.targets[first + 1, 15 * 10 + 6].item() == pytest.approx(-1.5)


def test_drives_are_learnt_from_as_they_were_and_as_in_a_mirror() -> None:
    drive = drive_of(targets(0.0, 0.0), 1.0, 2.0)
    drive.targets[:, 1], drive.pulses[1, LEFT] = 0.5, 1.0
    histories = join([drive], PLAIN)
    ends = histories.rows
    assert histories.features[ends, 0].tolist() == [1.0, 1.0, 2.0, 2.0]
    # To the right of the middle of the lane one drives back to the left, and the other way round.
    assert histories.targets[ends, 1].tolist() == [0.5, 0.5, -0.5, -0.5]
    assert histories.pulses[ends].argmax(1).tolist() == [0, LEFT, 0, RIGHT]
    # Worlds drive on the right, their mirrors on the left.
    assert histories.conventions[ends].tolist() == [[1.0, 0.0]] * 2 + [[0.0, 1.0]] * 2
    # Before a drive there is nothing.
    assert histories.present.tolist() == ([0.0] * (HISTORY_ROWS - 1) + [1.0] * 2) * 2


def test_a_policy_is_judged_by_what_it_commands() -> None:
    # A policy that says the same of everything: 12 m/s, braking by 1 m/s2, to the right.
    policy, times = Policy(), T_IDXS.astype(np.float32)
    torch.nn.init.zeros_(policy.plan.last.weight)
    plan = policy.plan.last.bias.data[: PLAN.size].reshape(33, 15)
    plan[:, 3], plan[:, 6] = torch.from_numpy(12.0 - times), -1.0
    plan[:, 11], plan[:, 14] = 0.01 * torch.from_numpy(times), 0.01
    # Every fifth of ten rows, the first of which is gentle, and once more in a mirror.
    rows = np.zeros((10, size_of(POLICY_HEADS)), np.float32)
    rows[:, 3 : PLAN.size : 15] = 10.0
    rows[5, 3 : PLAN.size : 15], rows[5, 6 : PLAN.size : 15] = 10.0 - 4.0 * T_IDXS, -4.0
    errors = command_errors(policy, join([drive_of(rows)], PLAIN), PLAIN)
    hard = {"hard braking, mean, m/s2", "hard braking, m/s2"}
    assert errors == {
        "own speed, m/s": pytest.approx(2.0, rel=1e-3),
        # Of 0 and -4 it asks for -1.
        "acceleration, m/s2": pytest.approx(2.0, rel=1e-2),
        **dict.fromkeys(hard, pytest.approx(3.0, rel=1e-2)),
        "lateral, m/s2": pytest.approx(0.1, rel=1e-2),
    }
    gentle = command_errors(policy, join([drive_of(rows[:5])], PLAIN), PLAIN)
    assert set(errors) - set(gentle) == hard
