"""Parts that look for lines and motion are told what is painted, and how the road moves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tools.training.straight_road import singles, straight
from tools.training.cells import COLUMNS, line_columns
from tools.training.hints import choice_loss, hint_loss, line_loss, way_loss
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


def test_both_parts_are_helped() -> None:
    outputs = {"cells": torch.zeros(1, 2, 7, 16, 32), "ways": torch.zeros(1, WAYS)}
    losses = hint_loss(outputs, straight(10.0))
    assert {*losses} == {"line_cells", "lead_cells", "way"}
    assert losses["way"].item() == pytest.approx(np.log(WAYS), rel=1e-5)
