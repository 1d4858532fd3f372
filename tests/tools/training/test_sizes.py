"""The model that is kept is as small as is promised of it."""

from __future__ import annotations

from math import prod
from pathlib import Path

import onnx

from tools.training.export import MOST_BYTES, MOST_PARAMETERS, POLICY_FILE, VISION_FILE

MODELS = Path(__file__).parents[3] / "tools/models"
FILES = tuple(MODELS / name for name in (VISION_FILE, POLICY_FILE))


def test_limits_are_those_of_the_promise() -> None:
    assert (MOST_PARAMETERS, MOST_BYTES) == (2_000_000, 5_000_000)


def test_files_that_are_kept_are_small() -> None:
    assert sum(path.stat().st_size for path in FILES) <= MOST_BYTES
    # Weights are initializers; tables that were not learnt are constants of the graph.
    weights = [weight for path in FILES for weight in onnx.load(path).graph.initializer]
    found = sum(prod(weight.dims) for weight in weights)
    assert 1_000_000 < found <= MOST_PARAMETERS
