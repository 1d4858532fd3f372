"""Losses are least at the truth, take no notice of what is not known, and never overflow."""

from __future__ import annotations

import math

import pytest
import torch

from tools.training.heads import Head
from tools.training.losses import HIGHEST, LOWEST, head_loss, total_loss

LINE = Head("line", "gaussian", (3,))
CHANCE = Head("chance", "binary", (2,))
CHOICE = Head("choice", "categorical", (2, 4))


def output(means: list[float], log_deviation: float) -> torch.Tensor:
    return torch.tensor([[*means, *([log_deviation] * len(means))]])


def test_gaussian_loss_is_least_at_the_truth() -> None:
    truth = torch.tensor([[1.0, -2.0, 0.5]])
    right = head_loss(LINE, output([1.0, -2.0, 0.5], 0.0), truth)
    wrong = head_loss(LINE, output([1.5, -2.0, 0.5], 0.0), truth)
    assert right.item() == 0.0
    # Laplace: sqrt(2) |error| / deviation, the mean over three values.
    assert wrong.item() == pytest.approx(math.sqrt(2.0) * 0.5 / 3)


def test_best_deviation_is_that_of_the_errors() -> None:
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand((20000, 1), generator=generator) - 0.5
    # Laplace's distribution of deviation 0.3.
    errors = -0.3 / math.sqrt(2.0) * uniform.sign() * torch.log1p(-2 * uniform.abs())
    head = Head("x", "gaussian", (1,))
    log_deviation = torch.tensor(0.0, requires_grad=True)
    optimizer = torch.optim.Adam([log_deviation], 0.05)
    for _ in range(300):
        both = torch.cat([torch.zeros_like(errors), log_deviation.expand(len(errors), 1)], 1)
        optimizer.zero_grad()
        head_loss(head, both, errors).backward()
        optimizer.step()
    assert math.exp(log_deviation.item()) == pytest.approx(0.3, rel=0.03)


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


def test_nothing_known_at_all_is_no_loss() -> None:
    truth = torch.full((2, 3), math.nan)
    assert head_loss(LINE, torch.zeros(2, 6), truth).item() == 0.0


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


def test_chances_and_choices() -> None:
    chance = head_loss(CHANCE, torch.tensor([[0.0, 20.0]]), torch.tensor([[1.0, 1.0]]))
    assert chance.item() == pytest.approx(math.log(2.0) / 2, rel=1e-4)
    truth = torch.zeros(1, 8)
    truth[0, 1] = truth[0, 4] = 1.0
    choice = head_loss(CHOICE, torch.zeros(1, 8), truth)
    assert choice.item() == pytest.approx(math.log(4.0))


def test_total_is_the_weighted_sum() -> None:
    heads = (Head("line", "gaussian", (3,), 2.0), Head("chance", "binary", (2,), 0.5))
    outputs = {"line": torch.zeros(1, 6), "chance": torch.zeros(1, 2)}
    total, parts = total_loss(heads, outputs, torch.ones(1, 5))
    assert total.item() == pytest.approx(2 * parts["line"].item() + 0.5 * parts["chance"].item())
