"""Kind `eager`: tensors that are computed, pinned, run and written to in any order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.fuzz.batch import Outcome
from tests.fuzz.case import Name
from tests.fuzz.eager import run_program


def run(names: Sequence[Name]) -> list[Outcome]:
    """Run programs one by one: each decides what is compiled while it runs."""
    return [_run(name) for name in names]


def _run(name: Name) -> Outcome:
    outcome = Outcome(name)
    try:
        run_program(np.random.default_rng(name.seed), name.steps or None)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what is looked for
        outcome.problem = f"{type(error).__name__}: {error}"
    outcome.counts.exact += 1
    return outcome
