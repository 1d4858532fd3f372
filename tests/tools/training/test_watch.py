"""A training that diverges is told in one line; one that is noisy goes on."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tools.errors import TrainingError
from tools.training.watch import Watch


def test_noisy_falling_losses_go_on() -> None:
    rng, watch = np.random.default_rng(0), Watch("begin again")
    for step in range(3000):
        watch.see("vision", step, 5.0 * math.exp(-step / 500) - 1.0 + 0.3 * rng.standard_t(3))


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_loss_that_is_no_number_ends_it(loss: float) -> None:
    with pytest.raises(TrainingError, match=r"^vision stage, step 7: .*diverged; begin again$"):
        Watch("begin again").see("vision", 7, loss)


def test_losses_far_above_their_median_end_it_and_one_does_not() -> None:
    rng, watch = np.random.default_rng(0), Watch("begin again")
    for step in range(200):
        watch.see("policy", step, 1.0 + 0.1 * rng.normal())
    watch.see("policy", 200, 1e6)
    watch.see("policy", 201, 1.0)
    for step in range(300, 309):
        watch.see("policy", step, 1e6)
    with pytest.raises(TrainingError, match=r"^policy stage, step 309: .* found 1e\+06") as caught:
        watch.see("policy", 309, 1e6)
    assert "\n" not in str(caught.value)
