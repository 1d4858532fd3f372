"""What a kernel quantises and uses at once stays a float; the values are those of the bytes."""

import numpy as np
import pytest

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import load, plan_for


def meant(x: Tensor, kind: dt.DType, limits: tuple[float, float], zero: int) -> Tensor:
    """Numbers after a conversion to bytes and back."""
    q = ((x / 0.03).round() + float(zero)).clip(*limits).cast(kind)
    return (q.cast(dt.int32) - zero).cast(dt.float32) * 0.03 + x


@pytest.mark.parametrize(
    ("kind", "limits", "kept"),
    [
        (dt.uint8, (0.0, 255.0), True),
        (dt.int8, (-128.0, 127.0), True),
        (dt.uint8, (3.0, 17.0), True),
        (dt.int8, (-128.0, 200.0), False),  # what is beyond 127 becomes another number
        (dt.uint8, (0.5, 255.0), False),
    ],
)
def test_no_byte_lies_between(kind: dt.DType, limits: tuple[float, float], *, kept: bool) -> None:
    x = Tensor.input("x", (64,), dt.float32)
    y = meant(x, kind, limits, 5)
    (kernel,) = plan_for(y).lowered
    assert ("char" not in kernel.text) is kept
    given = {"x": np.random.default_rng(2).normal(size=64).astype(np.float32) * 5}
    given["x"][:4] = [np.inf, -np.inf, 0.0, -0.0]
    with load({"y": y}) as program:
        np.testing.assert_allclose(program.run(given)["y"], y.interp(given), rtol=3e-7)


def test_a_byte_that_is_stored_is_converted_for_the_store() -> None:
    x = Tensor.input("x", (64,), dt.float32)
    q = ((x / 0.03).round() + 5.0).clip(0.0, 255.0).cast(dt.uint8)
    y = (q.cast(dt.int32) - 5).cast(dt.float32) * 0.03
    given = {"x": np.random.default_rng(2).normal(size=64).astype(np.float32) * 5}
    with load({"q": q, "y": y}) as program:
        run = program.run(given)
    np.testing.assert_array_equal(run["q"], q.interp(given))
    np.testing.assert_array_equal(run["y"], y.interp(given))
