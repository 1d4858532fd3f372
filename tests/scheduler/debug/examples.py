"""Programs that the tests of tables, text and pages look at."""

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import x


def two_products() -> Tensor:
    """relu(x w1) w2: two kernels with 256 bytes between them."""
    rng = np.random.default_rng(3)
    w1, w2 = (Tensor.weight(rng.normal(size=s).astype(np.float32)) for s in ((8, 16), (16, 4)))
    return (x(4, 8) @ w1).relu().contiguous() @ w2


def layers() -> Tensor:
    """Four products of 64 rows and columns, each with a softmax and a residual."""
    y = x(64, 64)
    for i in range(4):
        y = (y @ Tensor.weight(np.full((64, 64), i, np.float32))).softmax(1).contiguous() + y
    return y
