"""What the schema says of signs is what the daemon computes."""

import re
from pathlib import Path

import numpy as np

from modeld.actions import curvature_from_plan
from modeld.constants import T_IDXS

SCHEMA = Path(__file__).parents[2] / "cereal"


def test_curvature_is_positive_to_the_right() -> None:
    said = [
        comment
        for name in ("log.capnp", "driving.capnp")
        for comment in re.findall(
            r"\bdesiredCurvature @\d+ :Float32; +# (.*positive.*)", (SCHEMA / name).read_text()
        )
    ]
    assert len(said) >= 2
    assert all("positive turns right" in comment for comment in said)
    # x forward, y right, z down: heading grows to the right. 0.1 rad/s at 10 m/s is 1/100 1/m.
    plan = np.zeros((33, 15), np.float32)
    plan[:, 11], plan[:, 14] = 0.1 * T_IDXS, 0.1
    assert curvature_from_plan(plan, 10.0, 0.3) > 0.0
