"""Losses are least at the truth, take no notice of what is not known, and never overflow.

Those of heads, those of parts that look for lines, cars and the way, and that of a student.
"""

from __future__ import annotations

import math
from copy import deepcopy

import numpy as np
import pytest
import torch

from tests.tools.training.straight_road import singles, straight, with_lead
from tests.tools.training.with_torch.conftest import Networks
from tools.simulator.training.distillation import Lesson, follow, following_loss
from tools.simulator.training.heads import HIDDEN_WIDTH, HISTORY_ROWS, POLICY_HEADS, Head
from tools.simulator.training.losses import (
    HIGHEST,
    LOWEST,
    choice_loss,
    displacement_loss,
    head_loss,
    hint_loss,
    lead_loss,
    line_loss,
    reading_loss,
    total_loss,
)
from tools.simulator.training.networks.cells import (
    COLUMNS,
    ROWS,
    lead_places,
    lead_readings,
    line_columns,
)
from tools.simulator.training.networks.parts import call_rounded, fold_norms
from tools.simulator.training.networks.sweep import DISPLACEMENTS, displacement_of

LINE = Head("line", "gaussian", (3,))
NOWHERE = torch.full((1, 2, 16, 32), -14.0)


def output(means: list[float], log_deviation: float) -> torch.Tensor:
    return torch.tensor([[*means, *([log_deviation] * len(means))]])


@pytest.mark.parametrize("deviation", [1.0, 2.0])
def test_gaussian_loss_is_least_at_the_truth_and_for_the_deviation_of_its_errors(
    deviation: float,
) -> None:
    truth, log_deviation = torch.tensor([[1.0, -2.0, 0.5]]), math.log(deviation)
    # Laplace: log deviation + sqrt(2) |error| / deviation, the mean over three values; what is
    # known well counts less, by the root of its deviation, which is not learnt from.
    weight, off = math.sqrt(deviation), math.sqrt(2.0) * 0.5 / deviation
    best = head_loss(LINE, output([1.0, -2.0, 0.5], log_deviation), truth)
    assert best.item() == pytest.approx(weight * log_deviation)
    said = output([1.5, -2.0, 0.5], log_deviation).requires_grad_()
    loss = head_loss(LINE, said, truth)
    assert loss.item() == pytest.approx(weight * (log_deviation + off / 3))
    loss.backward()
    assert said.grad is not None
    wanted = [weight * math.sqrt(2.0) / deviation / 3, weight * (1.0 - off) / 3]
    assert said.grad[0, [0, 3]].tolist() == pytest.approx(wanted)


def test_what_is_not_known_changes_neither_loss_nor_gradient() -> None:
    truth = torch.tensor([[1.0, math.nan, 0.5], [math.nan] * 3])
    said = torch.cat([output([0.0, 7.0, 0.0], 0.1), output([9.0, 9.0, 9.0], 0.2)])
    said.requires_grad_(True)
    loss = head_loss(LINE, said, truth)
    loss.backward()
    alone = head_loss(Head("y", "gaussian", (2,)), output([0.0, 0.0], 0.1), truth[:1, [0, 2]])
    assert loss.item() == pytest.approx(alone.item())
    assert said.grad is not None
    assert said.grad[0, 1].item() == said.grad[0, 4].item() == 0.0
    assert said.grad[1].abs().max().item() == 0.0
    nothing = torch.full((2, 3), math.nan)
    assert head_loss(LINE, torch.zeros(2, 6), nothing).item() == 0.0


@pytest.mark.parametrize("log_deviation", [-1e4, 1e4])
def test_absurd_deviations_are_drawn_back(log_deviation: float) -> None:
    said = output([3.0, 3.0, 3.0], log_deviation).requires_grad_(True)
    loss = head_loss(LINE, said, torch.zeros(1, 3))
    loss.backward()
    assert math.isfinite(loss.item())
    assert said.grad is not None
    assert said.grad.isfinite().all()
    # Downhill is towards the range.
    assert (said.grad[0, 3:] * (log_deviation - (LOWEST + HIGHEST) / 2) > 0).all()


def test_chances_choices_and_the_weighted_sum() -> None:
    binary = Head("chance", "binary", (2,))
    chance = head_loss(binary, torch.tensor([[0.0, 20.0]]), torch.tensor([[1.0, 1.0]]))
    assert chance.item() == pytest.approx(math.log(2.0) / 2, rel=1e-4)
    truth = torch.zeros(1, 8)
    truth[0, 1] = truth[0, 4] = 1.0
    choice = head_loss(Head("choice", "categorical", (2, 4)), torch.zeros(1, 8), truth)
    assert choice.item() == pytest.approx(math.log(4.0))
    heads = (Head("line", "gaussian", (3,), 2.0), Head("chance", "binary", (2,), 0.5))
    outputs = {"line": torch.zeros(1, 6), "chance": torch.zeros(1, 2)}
    total, parts = total_loss(heads, outputs, torch.ones(1, 5))
    assert total.item() == pytest.approx(2 * parts["line"].item() + 0.5 * parts["chance"].item())


def logits_at(columns: np.ndarray) -> torch.Tensor:
    """Return logits of cells that say just these columns, NaN for no line."""
    distance = np.abs(columns[..., None] - 0.5 - np.arange(COLUMNS))
    said = np.log(np.maximum(1.0 - distance, 1e-6)) + 14.0
    return torch.from_numpy(np.where(np.isnan(distance), -14.0, said).astype(np.float32))


def test_loss_is_least_where_cells_say_where_lines_are() -> None:
    target = straight(10.0)
    truth = line_columns(target)
    best = line_loss(logits_at(truth), target).item()
    # What lies between two cells is known as well as a choice between them can be.
    assert best < 0.75
    for wrong in (truth + 1.0, truth - 1.0, np.full_like(truth, np.nan)):
        assert line_loss(logits_at(wrong), target).item() > best + 1.0
    assert line_loss(torch.zeros(1, 2, 6, 16, 32), target).item() > best + 1.0
    # Unknown lines are not there and count nothing else.
    target[:] = np.nan
    assert 0.0 <= line_loss(torch.full((1, 2, 6, 16, 32), -14.0), target).item() < 1e-5


def test_way_loss_is_least_at_the_true_way() -> None:
    target = straight(20.0)
    steps = displacement_of(singles(20.0), singles(1.25))[0]
    displacements = 8.0 * torch.eye(DISPLACEMENTS)
    losses = [
        displacement_loss(displacements[None, index], target).item()
        for index in range(DISPLACEMENTS)
    ]
    assert int(np.argmin(losses)) == round(float(steps))


# Outside, the nearest is right.
@pytest.mark.parametrize(
    ("at", "wanted"),
    [(1.0, np.log(0.5)), (1.75, 0.25 * np.log(0.5) + 0.75 * np.log(0.3)), (7.0, np.log(0.3))],
)
def test_choices_between_two_are_shared(at: float, wanted: float) -> None:
    logs = torch.tensor([[0.2, 0.5, 0.3]]).log()
    found = choice_loss(logs, torch.tensor([at])).item()
    assert found == pytest.approx(-wanted, rel=1e-5)


def lead_logits(places: np.ndarray) -> torch.Tensor:
    """Return logits of cells that say just these places, (n, 2, 2)."""
    across = np.abs(places[..., 0, None] - 0.5 - np.arange(COLUMNS))[..., None, :]
    down = np.abs(places[..., 1, None] - 0.5 - np.arange(ROWS))[..., :, None]
    share = np.maximum(1.0 - across, 0.0) * np.maximum(1.0 - down, 0.0)
    return torch.from_numpy(np.log(np.maximum(share, 1e-6)).astype(np.float32) + 14.0)


def test_loss_is_least_where_cells_say_where_the_car_is() -> None:
    target = with_lead(20.0, 1.0)
    truth = lead_places(target)
    best = lead_loss(lead_logits(truth), target).item()
    # Two choices between two cells each, at most log 2 for either.
    assert best < 2.0 * np.log(2.0) + 0.05
    for wrong in (truth + np.array([1.0, 0.0]), truth - np.array([0.0, 1.0])):
        assert lead_loss(lead_logits(wrong), target).item() > best + 1.0
    assert lead_loss(NOWHERE, target).item() > best + 1.0
    # Cells that say there is no car cost nothing without one.
    assert lead_loss(NOWHERE, straight()).item() < 1e-5
    unsure = lead_loss(torch.zeros(1, 2, 16, 32), straight()).item()
    assert unsure == pytest.approx(np.log(2.0))


def test_readings_of_the_car_are_judged_in_both_views_where_there_is_one() -> None:
    target = with_lead(40.0, 0.0, 5.0)
    truth = torch.from_numpy(lead_readings(target))[:, None].expand(1, 2, 2)
    assert reading_loss(truth, target).item() == 0.0
    off = torch.tensor([[[0.5, 0.0], [0.0, -0.25]]])
    assert reading_loss(truth + off, target).item() == pytest.approx(0.75 / 4.0)
    readings = torch.ones(1, 2, 2, requires_grad=True)
    loss = reading_loss(readings, straight())
    loss.backward()
    assert loss.item() == 0.0
    assert readings.grad is not None


def test_all_parts_are_helped() -> None:
    outputs = {
        "cells": torch.zeros(1, 2, 7, 16, 32),
        "displacements": torch.zeros(1, DISPLACEMENTS),
    }
    outputs["lead_readings"] = torch.zeros(1, 2, 2)
    losses = hint_loss(outputs, straight(10.0))
    assert {*losses} == {"line_cells", "lead_cells", "lead_readings", "displacement"}
    assert losses["displacement"].item() == pytest.approx(np.log(DISPLACEMENTS), rel=1e-5)


def correlated(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Return 64 inputs of the policy, as of a network: values go with each other.

    What rounding did to one, others can make good.
    """
    few = torch.randn((64, HISTORY_ROWS, 32), generator=generator)
    mixed = torch.randn((32, HIDDEN_WIDTH), generator=torch.Generator().manual_seed(9))
    convention = torch.tensor([[1.0, 0.0]]).expand(64, 2)
    return torch.zeros(64, HISTORY_ROWS, 8), convention, few @ mixed / 32**0.5


def test_student_of_8_bits_follows_better_after_some_steps(networks: Networks) -> None:
    _, teacher, _ = networks
    student = deepcopy(teacher)
    fold_norms(student)
    inputs = correlated(torch.Generator().manual_seed(1))

    def apart() -> float:
        with torch.inference_mode():
            said = call_rounded(student, *inputs)
            return float(following_loss(POLICY_HEADS, said, teacher(*inputs))[0])

    before, generator = apart(), torch.Generator().manual_seed(2)
    losses: list[float] = []
    lesson = Lesson(teacher, POLICY_HEADS, lambda: correlated(generator), 3.0, "policy")
    steps = follow(student, lesson, lambda _s, _n, loss, _p: losses.append(loss))
    assert steps == len(losses) > 1
    assert 0.0 < apart() < 0.9 * before
