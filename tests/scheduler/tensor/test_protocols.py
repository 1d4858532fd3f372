"""What Python and numpy ask of a sequence, a number and an array, answered by tensors."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scheduler import Tensor
from scheduler.errors import ModelError, TensorCopyError, TensorIndexError, TensorTypeError
from scheduler.ir import dtype as dt

ROWS = np.array([[1.5, -2.0, 3.0], [4.0, 5.5, -6.0]], np.float32)


def rows() -> Any:
    return Tensor(ROWS)


def free() -> Any:
    """Return a tensor that has no value before a program is given one."""
    return Tensor.input("x", (1,)) + 1.0


# --- a sequence of rows ----------------------------------------------------------------------


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


def test_a_tensor_without_axes_is_no_sequence() -> None:
    for use in (len, iter, list):
        with pytest.raises(TensorTypeError, match="has no axes"):
            use(Tensor(3.0))


@pytest.mark.parametrize("key", [2, -3, (0, 3), (0, 0, 0), [0, 2], ([-3], [0]), np.array([5])])
def test_an_index_outside_of_its_axis_is_an_index_error(key: Any) -> None:
    with pytest.raises(TensorIndexError, match="index: "):
        rows()[key]
    with pytest.raises(IndexError):
        rows()[key]
    assert issubclass(TensorIndexError, ModelError)


@pytest.mark.parametrize("key", ["a", 1.5, [0.5]])
def test_what_is_no_integer_is_no_index(key: Any) -> None:
    with pytest.raises(TensorIndexError, match="expected ints"):
        rows()[key]


def test_a_bool_is_a_mask_and_not_the_index_one() -> None:
    with pytest.raises(ModelError, match="use where"):
        rows()[True]


def test_no_index_at_all_picks_nothing() -> None:
    assert rows()[[]].shape == ROWS[[]].shape


USES_OF_AN_AXIS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda t, axis: t.sum(axis),
    "mean": lambda t, axis: t.mean((0, axis)),
    "var": lambda t, axis: t.var(axis),
    "argmax": lambda t, axis: t.argmax(axis),
    "softmax": lambda t, axis: t.softmax(axis),
    "permute": lambda t, axis: t.permute(0, axis),
    "transpose": lambda t, axis: t.transpose(0, axis),
    "flip": lambda t, axis: t.flip(axis),
    "window": lambda t, axis: t.window(axis, 1),
    "squeeze": lambda t, axis: t.squeeze(axis),
    "split": lambda t, axis: t.split([1, 1], axis),
    "gather": lambda t, axis: t.gather(Tensor([0]), axis),
    "cat": lambda t, axis: Tensor.cat([t, t], axis),
}


@pytest.mark.parametrize("use", USES_OF_AN_AXIS.values(), ids=USES_OF_AN_AXIS)
def test_an_axis_that_is_not_there_is_refused_and_not_counted_round(
    use: Callable[[Any, Any], Any],
) -> None:
    for axis in (2, -3, 5):
        with pytest.raises(TensorIndexError, match=f"axis {axis} is outside of 2 axes"):
            use(rows(), axis)
    with pytest.raises(TypeError, match="integer"):
        use(rows(), 0.5)


def test_an_inserted_axis_may_be_one_further() -> None:
    assert rows().unsqueeze(2).shape == (2, 3, 1)
    assert Tensor.stack([rows(), rows()], axis=-3).shape == (2, 2, 3)
    with pytest.raises(TensorIndexError, match="axis 3 is outside of 3 axes"):
        rows().unsqueeze(3)
    with pytest.raises(TensorIndexError, match="axis 1 is outside of 0 axes"):
        Tensor(1.0).sum(1)


def test_a_cut_beyond_the_end_is_the_callers_mistake() -> None:
    for bounds in ([(0, 5), (0, 1)], [(0, 1)], [(1, 0), (0, 3)]):
        with pytest.raises(TensorIndexError, match=r"shrink: .* is outside of \(2, 3\)"):
            rows().shrink(bounds)


# --- a number --------------------------------------------------------------------------------


@pytest.mark.opencl
def test_one_element_is_a_number() -> None:
    t = rows().sum()  # 1.5 - 2 + 3 + 4 + 5.5 - 6 = 6
    assert float(t) == 6.0
    assert int(t / 4) == 1
    assert complex(t) == 6 + 0j
    assert math.sqrt(t + 3) == 3.0
    assert f"{t:.2f}" == "6.00"
    assert bool(t)
    assert not Tensor([0])
    assert 5.5 in rows()
    assert 7 not in rows()
    assert rows()[1, 1] in rows()


@pytest.mark.parametrize("use", [float, int, bool, complex])
def test_several_elements_are_no_number(use: Callable[[Any], Any]) -> None:
    for t in (rows(), Tensor.zeros(0)):
        with pytest.raises(TensorTypeError, match="elements; use numpy"):
            use(t)


@pytest.mark.parametrize("use", [float, int, bool, complex])
def test_what_depends_on_an_input_is_no_number(use: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"before input:x\[1\] is given"):
        use(free())


@pytest.mark.parametrize("use", [range, np.zeros, lambda n: [1, 2][n]])
def test_no_tensor_is_a_size(use: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"shapes are fixed|a single integer"):
        use(Tensor(1))


# --- an array --------------------------------------------------------------------------------


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


def test_an_array_without_a_copy_is_refused_where_there_is_none() -> None:
    with pytest.raises(TensorCopyError, match="cannot be float64 without a copy"):
        np.asarray(rows(), np.float64, copy=False)
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(Tensor(1.0), copy=False)
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(free(), copy=False)


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
    with pytest.raises(BufferError):
        np.from_dlpack(Tensor(1.0), copy=False)


# --- operands --------------------------------------------------------------------------------

LEFT: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "float32 * t": (lambda t: np.float32(2) * t, ROWS * 2),
    "float64 - t": (lambda t: np.float64(2) - t, 2 - ROWS.astype(np.float64)),
    "int64 + t": (lambda t: np.int64(2) + t, ROWS + 2),
    "array / t": (lambda t: ROWS / t, ROWS / ROWS),
    "vector @ vector": (lambda t: ROWS[0] @ t[1], ROWS[0] @ ROWS[1]),
    "array < t": (lambda t: ROWS[0] < t, ROWS[0] < ROWS),
    "array == t": (lambda t: ROWS[0] == t, ROWS[0] == ROWS),
    "array @ t": (lambda t: ROWS.T @ t, ROWS.T @ ROWS),
    "list * t": (lambda t: [1, 2, 3] * t, ROWS * np.array([1, 2, 3], np.float32)),
    "t == list": (lambda t: t == [1.5, 5.5, 3.0], ROWS == [1.5, 5.5, 3.0]),
    "t - floats": (lambda t: t.int() - [0.5, 0.5, 0.5], ROWS.astype(int) - np.float32(0.5)),
    "1 << t": (lambda t: 1 << t.abs().int(), 1 << np.abs(ROWS).astype(np.int32)),
    "99 >> t": (lambda t: 99 >> t.abs().int(), 99 >> np.abs(ROWS).astype(np.int32)),
    "divmod": (lambda t: divmod(t, 2)[0], ROWS // 2),
    "rdivmod": (lambda t: divmod(9, t)[1], 9 % ROWS),
    "abs": (abs, np.abs(ROWS)),
    "+t": (lambda t: +t, ROWS),
}


@pytest.mark.parametrize("name", LEFT)
def test_operators_with_what_numpy_and_python_have_make_tensors(name: str) -> None:
    use, want = LEFT[name]
    found = use(rows())
    assert isinstance(found, Tensor)
    np.testing.assert_allclose(found.interp(), want, rtol=1e-6)


@pytest.mark.parametrize("other", [None, "a", b"a", 1j, object(), {1: 2}])
def test_what_is_no_number_is_no_operand(other: Any) -> None:
    with pytest.raises(TensorTypeError, match="expected numbers, an array, a list or a tensor"):
        rows() + other
    with pytest.raises(TensorTypeError, match="expected numbers"):
        Tensor(other)
    assert rows() != other


@pytest.mark.opencl
def test_tensors_are_made_of_tensors() -> None:
    t = rows()
    other = Tensor(t, dt.float64)
    t[0] = 0.0
    assert other.dtype is dt.float64
    np.testing.assert_array_equal(other.interp(), ROWS)
    assert Tensor([t, t]).shape == (2, 2, 3)


# --- an object -------------------------------------------------------------------------------


@pytest.mark.opencl
def test_pickling_keeps_values_type_and_kind() -> None:
    made = pickle.loads(pickle.dumps(rows() + 1))
    np.testing.assert_array_equal(made.interp(), ROWS + 1)
    weight = pickle.loads(pickle.dumps(Tensor.weight(ROWS)))
    assert weight.node.arg.kind == "weight"
    assert (made * 2).realize().numpy()[0, 0] == 5.0  # a live tensor, which realizing replaces
    with pytest.raises(TensorTypeError, match="no values to pickle"):
        pickle.dumps(free())


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
