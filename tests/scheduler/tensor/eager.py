"""Tensors of small arrays, run and compared: what the tests of eager programs share."""

from typing import Any

import numpy as np

from scheduler import Tensor


def t(x: Any) -> Tensor:
    return Tensor(np.asarray(x, np.float32))


def zeros(*shape: int) -> Tensor:
    return t(np.zeros(shape))


def equal(*pairs: tuple[Tensor, Any]) -> None:
    """Run tensors one by one and compare each exactly."""
    for tensor, want in pairs:
        np.testing.assert_array_equal(tensor.numpy(), np.asarray(want, np.float32), strict=True)
