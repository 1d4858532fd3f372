"""Short runs of the kind `eager`."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fuzz.eager import interpreted, run_program
from tests.support.selection import quick_cases


@pytest.mark.parametrize("block", quick_cases(range(12), 0))
def test_handles_mean_what_they_were_given(block: int) -> None:
    with interpreted():
        for seed in range(block * 10, block * 10 + 10):
            run_program(np.random.default_rng(seed))


@pytest.mark.opencl
@pytest.mark.parametrize("seed", quick_cases(range(3), 0))
def test_programs_run_on_the_device(seed: int) -> None:
    run_program(np.random.default_rng([seed, 1]), steps=25)
