"""Numbers at the limits of their type: integers from Python, means, divisors of 0, positions."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from scheduler import Tensor
from scheduler.errors import LoweringError, ModelError, VerifyError
from scheduler.ir import dtype as dt
from scheduler.onnx_backend.backend import prepare
from scheduler.pipeline import schedule
from tests.scheduler.onnx_import.onnx_models import parsed
from tests.scheduler.support.programs import load

I32 = np.iinfo(np.int32)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2**31 - 1, dt.int32),
        (-(2**31), dt.int32),
        (3_000_000_000, dt.int64),
        (2**63, dt.uint64),
        ([3_000_000_000, 1], dt.int64),
        ([2**63], dt.uint64),
    ],
)
def test_an_integer_takes_a_type_that_holds_it(value: Any, kind: dt.DType) -> None:
    tensor = Tensor(value)
    assert tensor.dtype is kind
    assert tensor.interp().tolist() == value


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2**64, None),
        (-(2**63) - 1, None),
        (-1, dt.uint8),
        (256, dt.uint8),
        ([1, -1], dt.uint64),
        ([300], dt.int8),
        ([2**64], dt.int64),
        (3_000_000_000, dt.int32),
    ],
)
def test_an_integer_that_a_type_does_not_hold_is_refused(value: Any, kind: Any) -> None:
    with pytest.raises(ModelError, match=r"is out of range for u?int"):
        Tensor(value, kind)


def test_by_zero_counts_as_by_one() -> None:
    a = np.array([-5, 5, -7, 0, I32.max, I32.min], np.int32)
    x, zeros = Tensor(a), Tensor(np.zeros(6, np.int32))
    for quotient, rest in ((x // zeros, x % zeros), (x // 0, x % 0)):
        assert quotient.interp().tolist() == a.tolist()
        assert rest.interp().tolist() == [0] * 6
    assert (x // 2).interp().tolist() == (a // 2).tolist()
    assert (x % -3).interp().tolist() == (a % -3).tolist()


@pytest.mark.opencl
def test_the_mean_of_integers_near_the_limit_is_between_them() -> None:
    x = np.array([[I32.max] * 4, [I32.max, I32.max, 5, -7], [I32.min] * 3 + [-3]], np.int32)
    text = "(int32[3,4] x) => (int32[3] y) { y = ReduceMean<axes = [1], keepdims = 0>(x) }"
    (found,) = prepare(parsed(text, 13)).run([x])
    # onnxruntime's; numpy's, made of sums of int32, are -1, -1 and 536870911
    assert found.tolist() == [2147483647, 1073741823, -1610612736]


@pytest.mark.opencl
def test_infinite_coordinates_are_outside() -> None:
    inf, x = np.inf, np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    grid = np.array([[[[inf, 0], [-inf, 0], [0, inf], [inf, -inf]]]], np.float32)
    wanted = {"zeros": [0, 0, 0, 0], "border": [6, 4, 8, 3]}
    ways = list(product(["linear", "nearest", "cubic"], wanted))
    nodes = " ".join(
        f'y{i} = GridSample<mode = "{mode}", padding_mode = "{padding}">(x, grid)'
        for i, (mode, padding) in enumerate(ways)
    )
    outputs = ", ".join(f"float[1,1,1,4] y{i}" for i in range(len(ways)))
    text = f"(float[1,1,3,3] x, float[1,1,4,2] grid) => ({outputs}) {{ {nodes} }}"
    for (_, padding), found in zip(ways, prepare(parsed(text, 20)).run([x, grid]), strict=True):
        np.testing.assert_allclose(found.reshape(-1), wanted[padding], rtol=1e-6)


def wide() -> Tensor:
    """Return 3e9 elements that nobody stores."""
    rows, columns = Tensor.input("x", (50000, 1)), Tensor.input("y", (1, 60000))
    return rows.maximum(columns)


def test_an_index_beyond_an_int_is_refused_by_name() -> None:
    flat, rows = wide().reshape(3_000_000_000), Tensor.input("i", (3,), dt.int64)
    for tensor, message in (
        (flat.gather(rows, 0), "a gather from an axis of 3000000000 elements"),
        (wide()[rows, rows], "gather from an axis of 3000000000 elements"),
        (flat[::7].gather(rows, 0), r"an index of up to \d{10} elements"),
    ):
        with pytest.raises(LoweringError, match=message):
            assert schedule({"z": tensor.node}).lowered
    with pytest.raises(VerifyError, match="positions along 3000000000 elements"):
        flat.argmax()


@pytest.mark.opencl
def test_a_part_of_what_is_too_large_to_store_is_right() -> None:
    part = wide().reshape(3_000_000_000)[2_900_000_000:2_900_000_003]
    feeds = {n: np.arange(s, dtype=np.float32) for n, s in (("x", 50000), ("y", 60000))}
    with load({"z": part}) as program:
        given = {k.name: feeds[k.name].reshape(k.shape) for k in program.inputs}
        assert program.run(given)["z"].tolist() == [48333] * 3
