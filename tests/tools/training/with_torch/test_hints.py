"""Parts that look for lines and motion are told what is painted, and how the road moves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tools.training.straight_road import singles, straight, with_lead
from tools.training.cells import COLUMNS, ROWS, lead_places, lead_readings, line_columns
from tools.training.hints import (
    choice_loss,
    hint_loss,
    lead_loss,
    line_loss,
    reading_loss,
    way_loss,
)
from tools.training.sweep import WAYS, way_of


def logits_at(columns: np.ndarray) -> torch.Tensor:
    """Return logits of cells that say just these columns, NaN for no line."""
    distance = np.abs(columns[..., None] - 0.5 - np.arange(COLUMNS))
    said = np.log(np.maximum(1.0 - distance, 1e-6)) + 14.0
    return torch.from_numpy(np.where(np.isnan(distance), -14.0, said).astype(np.float32))


def test_loss_is_least_where_cells_say_what_is_true() -> None:
    target = straight(10.0)
    truth = line_columns(target)
    best = line_loss(logits_at(truth), target).item()
    # What lies between two cells is known as well as a choice between them can be.
    assert best < 0.75
    for wrong in (truth + 1.0, truth - 1.0, np.full_like(truth, np.nan)):
        assert line_loss(logits_at(wrong), target).item() > best + 1.0
    assert line_loss(torch.zeros(1, 2, 6, 16, 32), target).item() > best + 1.0


def test_unknown_lines_are_not_there_and_count_nothing_else() -> None:
    target = straight(10.0)
    target[:] = np.nan
    assert 0.0 <= line_loss(torch.full((1, 2, 6, 16, 32), -14.0), target).item() < 1e-5


def test_way_loss_is_least_at_the_true_way() -> None:
    target = straight(20.0)
    steps = way_of(singles(20.0), singles(1.25))[0]
    losses = [way_loss(8.0 * torch.eye(WAYS)[None, index], target).item() for index in range(WAYS)]
    assert int(np.argmin(losses)) == round(float(steps))


def test_choices_between_two_are_shared() -> None:
    logs = torch.tensor([[0.2, 0.5, 0.3]]).log()
    assert choice_loss(logs, torch.tensor([1.0])).item() == pytest.approx(-np.log(0.5), rel=1e-5)
    wanted = -0.25 * np.log(0.5) - 0.75 * np.log(0.3)
    assert choice_loss(logs, torch.tensor([1.75])).item() == pytest.approx(wanted, rel=1e-5)
    # Outside, the nearest is right.
    assert choice_loss(logs, torch.tensor([7.0])).item() == pytest.approx(-np.log(0.3), rel=1e-5)


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
    assert lead_loss(torch.full((1, 2, 16, 32), -14.0), target).item() > best + 1.0


def test_cells_that_say_there_is_no_car_cost_nothing_without_one() -> None:
    target = straight()
    assert lead_loss(torch.full((1, 2, 16, 32), -14.0), target).item() < 1e-5
    assert lead_loss(torch.zeros(1, 2, 16, 32), target).item() == pytest.approx(np.log(2.0))


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
    outputs = {"cells": torch.zeros(1, 2, 7, 16, 32), "ways": torch.zeros(1, WAYS)}
    outputs["lead_readings"] = torch.zeros(1, 2, 2)
    losses = hint_loss(outputs, straight(10.0))
    assert {*losses} == {"line_cells", "lead_cells", "lead_readings", "way"}
    assert losses["way"].item() == pytest.approx(np.log(WAYS), rel=1e-5)
