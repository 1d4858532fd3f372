"""What Python and numpy ask of a sequence, a number and an array, and what tensors refuse."""

import copy
import math
import pickle
import re
from collections.abc import Callable, Sequence
from operator import itemgetter, methodcaller
from typing import Any

import numpy as np
import pytest

from scheduler import Tensor
from scheduler.errors import ModelError, TensorCopyError, TensorIndexError, TensorTypeError
from scheduler.ir import dtype as dt

ROWS = np.array([[1.5, -2.0, 3.0], [4.0, 5.5, -6.0]], np.float32)
Use = Callable[[Any], Any]


def rows() -> Any:
    return Tensor(ROWS)


def free() -> Any:
    """Return a tensor that has no value before a program is given one."""
    return Tensor.input("x", (1,)) + 1.0


def of(uses: Sequence[Use], make: Callable[[], Any]) -> list[Use]:
    """Return uses of another tensor than `rows`."""
    return [lambda _, use=use: use(make()) for use in uses]  # type: ignore[misc]


def keys(*keys: Any) -> list[Use]:
    return [itemgetter(key) for key in keys]


AXES = """
    t.sum(a)  t.mean((0, a))  t.var(a)  t.argmax(a)  t.softmax(a)  t.permute(0, a)  t.flip(a)
    t.transpose(0, a)  t.window(a, 1)  t.squeeze(a)  t.split([1, 1], a)  t.gather(Tensor([0]), a)
    Tensor.cat([t, t], a)
"""


def along(axis: Any) -> list[Use]:
    """Return uses of an axis of a tensor."""
    known = {"Tensor": Tensor, "a": axis}
    texts = re.split(r"\s\s+", AXES.strip())
    return [lambda t, text=text: eval(text, {**known, "t": t}) for text in texts]  # type: ignore[misc]  # noqa: S307


def size(use: Use) -> Use:
    return lambda _: use(Tensor.variable("n", 1, 8, 3))


def made_of(other: Any) -> Use:
    return lambda _: Tensor(other)


def without_copy(make: Callable[[], Any]) -> Use:
    return lambda _: np.asarray(make(), copy=False)


NUMBERS: list[Use] = [float, int, bool, complex]
SIZES: list[Use] = [
    Tensor.zeros,
    lambda n: rows()[:n],
    lambda n: rows().reshape(n, 2),
    lambda n: rows().expand(n, 3),
    lambda n: Tensor.arange(4)[1:n],
]
OPERANDS = [None, "a", b"a", 1j, object(), {1: 2}]
OUTSIDE = [2, -3, (0, 3), (0, 0, 0), [0, 2], ([-3], [0]), np.array([5])]
CUTS = [[(0, 5), (0, 1)], [(0, 1)], [(1, 0), (0, 3)]]
REFUSED: list[tuple[type[Exception], str, list[Use]]] = [
    (TensorTypeError, "has no axes", of([len, iter, list], lambda: Tensor(3.0))),
    (TensorIndexError, "index: ", keys(*OUTSIDE)),
    (TensorIndexError, "expected ints", keys("a", 1.5, [0.5])),
    (ModelError, "use where", [*keys(True), lambda t: t[t > 1]]),
    (TensorIndexError, "axis 2 is outside of 2 axes", along(2)),
    (TensorIndexError, "axis -3 is outside of 2 axes", along(-3)),
    (TensorIndexError, "axis 5 is outside of 2 axes", along(5)),
    (TypeError, "integer", along(0.5)),
    (TensorIndexError, "axis 3 is outside of 3 axes", [lambda t: t.unsqueeze(3)]),
    (TensorIndexError, "axis 1 is outside of 0 axes", [lambda _: Tensor(1.0).sum(1)]),
    (
        TensorIndexError,
        r"shrink: .* is outside of \(2, 3\)",
        [methodcaller("shrink", cut) for cut in CUTS],
    ),
    (TensorTypeError, "elements; use numpy", [*NUMBERS, *of(NUMBERS, lambda: Tensor.zeros(0))]),
    (TypeError, r"before input:x\[1\] is given", of(NUMBERS, free)),
    (ModelError, "no truth value", [lambda t: bool(t == t)]),  # noqa: PLR0124
    (ModelError, "expected one element", [lambda t: t.item()]),
    (
        TypeError,
        "shapes are fixed|a single integer",
        of([range, np.zeros, lambda n: [1, 2][n]], lambda: Tensor(1)),
    ),
    (ModelError, "used as a size.*shapes are fixed when a graph", [size(use) for use in SIZES]),
    (ModelError, r'"n": 9 is outside \[1, 8\]', [lambda _: Tensor.variable("n", 1, 8, 9)]),
    (ModelError, r'"n": 0 is outside \[1, 8\]', [lambda _: Tensor.variable("n", 1, 8, 0)]),
    (
        TensorTypeError,
        "expected numbers, an array, a list or a tensor",
        [methodcaller("__add__", other) for other in OPERANDS],
    ),
    (TensorTypeError, "expected numbers", [made_of(other) for other in OPERANDS]),
    (
        TensorCopyError,
        "cannot be float64 without a copy",
        [lambda t: np.asarray(t, np.float64, copy=False)],
    ),
    (ValueError, "without a copy", [without_copy(lambda: Tensor(1.0)), without_copy(free)]),
    (BufferError, "", [lambda _: np.from_dlpack(Tensor(1.0), copy=False)]),
    (TensorTypeError, "no values to pickle", of([pickle.dumps], free)),
    (
        ModelError,
        "gradients are not supported",
        [
            lambda _: Tensor(ROWS, requires_grad=True),
            lambda t: t.sum().backward(),
            lambda t: setattr(t, "requires_grad", True),
        ],
    ),
]


@pytest.mark.parametrize(
    ("kind", "message", "uses"), REFUSED, ids=[message for _, message, _ in REFUSED]
)
def test_what_is_refused(kind: type[Exception], message: str, uses: list[Use]) -> None:
    for use in uses:
        with pytest.raises(kind, match=message or None) as error:
            use(rows())
        assert "\n" not in str(error.value)


def test_errors_are_those_that_python_knows() -> None:
    assert issubclass(TensorIndexError, IndexError)
    assert issubclass(TensorIndexError, ModelError)


def test_a_tensor_is_a_sequence_of_its_rows() -> None:
    t = rows()
    assert len(t) == 2
    assert [row.shape for row in t] == [(3,), (3,)]
    first, second = t
    np.testing.assert_array_equal(second.interp(), ROWS[1])
    np.testing.assert_array_equal(next(reversed(t)).interp(), ROWS[1])
    assert [len(cut) for cut in t.T] == [2, 2, 2]
    assert list(Tensor.zeros(0, 3)) == []
    np.testing.assert_array_equal([x.item() for x in first], ROWS[0])
    assert t[[]].shape == ROWS[[]].shape
    assert t.tolist() == ROWS.tolist()


def test_an_inserted_axis_may_be_one_further() -> None:
    assert rows().unsqueeze(2).shape == (2, 3, 1)
    assert Tensor.stack([rows(), rows()], axis=-3).shape == (2, 2, 3)


@pytest.mark.opencl
def test_one_element_is_a_number() -> None:
    t = rows().sum().realize()  # 1.5 - 2 + 3 + 4 + 5.5 - 6 = 6
    assert t.item() == float(t) == 6.0
    assert int(t / 4) == 1
    assert complex(t) == 6 + 0j
    assert math.sqrt(t + 3) == 3.0
    assert f"{t:.2f}" == "6.00"
    assert bool(t)
    assert not Tensor([0])
    assert 5.5 in rows()
    assert 7 not in rows()
    assert rows()[1, 1] in rows()


@pytest.mark.opencl
def test_numpy_makes_an_array_of_a_tensor() -> None:
    t = rows() * 2
    for made in (np.array(t), np.asarray(t)):
        assert made.dtype == np.float32
        np.testing.assert_array_equal(made, ROWS * 2)
        made[0] = 9  # the caller's own
    np.testing.assert_array_equal(np.array([t, t]), np.stack([ROWS * 2] * 2))
    assert np.asarray(t, np.float64).dtype == np.float64
    assert np.asarray(t, "int8").tolist() == [[3, -4, 6], [8, 11, -12]]
    np.testing.assert_array_equal(Tensor(np.asarray(t)).interp(), ROWS * 2)


@pytest.mark.opencl
def test_an_array_without_a_copy_is_the_buffer_and_cannot_be_written_to() -> None:
    t = rows() * 2
    view = np.asarray(t[1:, ::2], copy=False)
    np.testing.assert_array_equal(view, ROWS[1:, ::2] * 2)
    assert not view.flags.writeable
    t[1] = 0.0
    t.realize()
    np.testing.assert_array_equal(view, ROWS[1:, ::2] * 2)  # what was taken stays
    assert np.shares_memory(np.asarray(t, copy=False), np.asarray(t, copy=False))


@pytest.mark.opencl
def test_functions_of_numpy_take_values() -> None:
    t: Any = rows()
    assert np.sum(t) == 7.0 - 1.0
    np.testing.assert_allclose(np.mean(t, axis=1), ROWS.mean(1))
    np.testing.assert_array_equal(np.concatenate([t, ROWS]), np.concatenate([ROWS, ROWS]))
    np.testing.assert_array_equal(np.where(t > 0, t, 0), ROWS.clip(0))
    assert np.allclose(t, ROWS)
    assert np.shape(t) == (2, 3)
    np.testing.assert_array_equal(t, ROWS)


@pytest.mark.opencl
def test_tensors_travel_by_dlpack() -> None:
    t = rows() + 1
    assert t.__dlpack_device__() == (1, 0)
    np.testing.assert_array_equal(np.from_dlpack(t), ROWS + 1)
    shared = np.from_dlpack(t.realize(), copy=False)
    assert np.shares_memory(shared, np.asarray(t, copy=False))


def test_a_tensor_differs_from_what_is_no_operand() -> None:
    assert all(rows() != other for other in (*OPERANDS, "text"))


def test_tensors_are_made_of_tensors() -> None:
    t = rows()
    other = Tensor(t, dt.float64)
    t[0] = 0.0
    assert other.dtype is dt.float64
    np.testing.assert_array_equal(other.interp(), ROWS)
    assert Tensor([t, t]).shape == (2, 2, 3)


@pytest.mark.opencl
def test_pickling_keeps_values_type_and_kind() -> None:
    made = pickle.loads(pickle.dumps(rows() + 1))
    np.testing.assert_array_equal(made.interp(), ROWS + 1)
    weight = pickle.loads(pickle.dumps(Tensor.weight(ROWS)))
    assert weight.node.arg.kind == "weight"
    assert (made * 2).realize().numpy()[0, 0] == 5.0  # a live tensor, which realizing replaces


def test_a_deep_copy_has_storage_of_its_own() -> None:
    t = rows()
    deep, shallow = copy.deepcopy(t), copy.copy(t)
    t[0] = 0.0
    np.testing.assert_array_equal(deep.interp(), ROWS)
    np.testing.assert_array_equal(shallow.interp()[1], ROWS[1])


def test_tensors_are_keys_by_identity() -> None:
    a, b = rows(), rows()
    assert {a: 1, b: 2}[b] == 2
    assert hash(a) != hash(b)
