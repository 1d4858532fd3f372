"""Assignment, whole and in part, to realized buffers, states and what is not computed yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler import Tensor
from scheduler.errors import ModelError, SchedulerError, VerifyError
from scheduler.ir import dtype as dt
from scheduler.ir.interp import evaluate
from scheduler.ir.node import make
from scheduler.ir.ops import Op
from scheduler.ir.verify import verify
from scheduler.passes.merge_assign import merge_assign
from tests.scheduler.support.programs import load

Array = NDArray[Any]

X = np.arange(24, dtype=np.float32).reshape(4, 6)


def t(x: Array = X) -> Tensor:
    return Tensor(x)


# --- whole ------------------------------------------------------------------------------------


@pytest.mark.opencl
def test_the_buffer_stays_and_old_readers_keep_old_values() -> None:
    x = t()
    buffer = x.node.arg
    old, view = x + 1.0, x.T
    assert x.assign(x * 2.0) is x
    assert x.node.src[0].arg is buffer
    new = x + 1.0
    x.realize()
    assert x.node.arg is buffer
    for tensor, want in ((x, X * 2), (old, X + 1), (view, X.T), (new, X * 2 + 1)):
        assert tensor.numpy().tolist() == want.tolist()


@pytest.mark.opencl
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_old_and_new_in_one_run(order: tuple[int, int]) -> None:
    x = t()
    old = x.sum(0)
    x.assign(x * 3.0 + 1.0)
    both = [old, x]
    plan = both[order[0]].schedule(both[order[1]])
    assert len(plan.kernels) <= 2
    both[order[0]].realize(both[order[1]])
    assert old.tolist() == X.sum(0).tolist()
    assert x.tolist() == (X * 3 + 1).tolist()


@pytest.mark.opencl
def test_reading_a_new_value_performs_the_assignment() -> None:
    x = t()
    x.assign(x + 1.0)
    total = x.sum()
    assert total.item() == (X + 1).sum()
    assert x.node.op is Op.BUFFER
    assert x.tolist() == (X + 1).tolist()


@pytest.mark.opencl
def test_a_value_that_reads_its_target_elsewhere_goes_through_a_temporary() -> None:
    square = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    x = t(square)
    x.assign(x.T)
    plan = x.schedule()
    assert len(plan.copies) == 1
    assert plan.peak_bytes == square.nbytes
    assert np.array_equal(x.numpy(), square.T)
    x.assign(x + x.flip(0))
    assert np.array_equal(x.numpy(), square.T + square.T[::-1])


@pytest.mark.opencl
def test_m04_chained_conversions_are_one_kernel_in_place() -> None:
    x = t(np.linspace(-1, 1, 1024, dtype=np.float32).reshape(32, 32))
    want = x.numpy()
    for kind in (dt.float16, dt.float32, dt.float16, dt.float32):
        x.assign(x.cast(kind).float())
    plan = x.schedule()
    assert (len(plan.launches), plan.peak_bytes, len(plan.outputs)) == (1, 0, 0)
    assert np.array_equal(x.numpy(), want.astype(np.float16).astype(np.float32))


@pytest.mark.opencl
def test_k15_only_the_last_assignment_is_stored() -> None:
    x = t()
    x.assign(x + 1.0)
    between = x * 10.0
    x.assign(x + 1.0)
    x.assign(x * 2.0)
    assert [n for n in (x.node.src[1].src[0], between.node.src[0]) if n.op is Op.ASSIGN] == []
    assert x.schedule(between).inputs == ()
    x.realize(between)
    assert x.tolist() == ((X + 2) * 2).tolist()
    assert between.tolist() == ((X + 1) * 10).tolist()


@pytest.mark.opencl
def test_k16_what_is_not_realized_just_takes_the_value() -> None:
    a, y = t(), t(X * 2)
    computed = a + 1.0
    assert computed.assign(y).node is y.node
    zeros = Tensor.zeros(4, 6)
    zeros.assign(a * 2.0)
    assert zeros.node.op is Op.MUL
    pinned = (a + 1.0).kernelize()
    pinned.assign(a * 3.0)
    assert pinned.node.op is Op.MUL
    assert pinned.tolist() == (X * 3).tolist()
    assert Tensor.empty(4, 6).assign(a + 1.0).tolist() == (X + 1).tolist()


@pytest.mark.opencl
def test_a_result_that_was_overwritten_is_not_found_again() -> None:
    a, b = t(), t(X + 1)
    c = (a + b).realize()
    c.assign(c * 0.0).realize()
    assert (a + b).tolist() == (X + X + 1).tolist()
    first = (a * 2.0).realize()
    a.assign(a + 1.0).realize()
    assert (a * 2.0).tolist() == ((X + 1) * 2).tolist()
    assert first.tolist() == (X * 2).tolist()


@pytest.mark.opencl
def test_an_old_view_that_is_written_to_leaves_the_new_value_alone() -> None:
    x = t()
    view = x[0:2]
    x.assign(x + 1.0)
    view.assign(view * 0.0)
    x.realize(view)
    assert x.tolist() == (X + 1).tolist()
    assert view.tolist() == (X[:2] * 0).tolist()


def test_what_does_not_fit_is_refused() -> None:
    x = t()
    with pytest.raises(ModelError, match="cannot take"):
        x.assign(t(X[:2]))
    with pytest.raises(ModelError, match="cannot take"):
        x.assign(t(X.astype(np.int32)))
    with pytest.raises(ModelError, match="repeats elements"):
        t(X[:1]).expand(4, 6).assign(x)
    with pytest.raises(ModelError, match="does not expand"):
        x[1:3] = t(X)


# --- in part ----------------------------------------------------------------------------------

ROWS = np.array([2, 0, -1])
KEYS: dict[str, Any] = {
    "slice": np.s_[1:3],
    "step": np.s_[::2, 1:6:3],
    "backwards": np.s_[3:0:-1, ::-2],
    "row": np.s_[-1],
    "element": np.s_[2, 3],
    "column": np.s_[:, 2],
    "new-axis": np.s_[1:3, None],
    "ellipsis": np.s_[..., 4:],
    "all": np.s_[:],
    "nothing": np.s_[2:2],
    "list": np.s_[[3, 1]],
    "columns": np.s_[:, [0, 5, -2]],
    "columns-of-rows": np.s_[1:4:2, ROWS],
    "columns-of-a-row": np.s_[2, ROWS],
    "twice-the-same": np.s_[:, [1, 1, 1]],
}


def _part(key: Any) -> Array:
    shape = X[key].shape
    return -1 - np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


KINDS: dict[str, Callable[[], Tensor]] = {
    "realized": t,
    "assigned": lambda: t(X * 0).assign(t()),
    "computed": lambda: t(X * 2) * 0.5,
    "view": lambda: t(X.T.copy()).T,
}


@pytest.mark.opencl
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_part_is_replaced(kind: str, key: str) -> None:
    for value in (7.0, _part(KEYS[key])):
        x, want = KINDS[kind](), X.copy()
        old = x + 0.5
        x[KEYS[key]] = value if isinstance(value, float) else Tensor(value)
        want[KEYS[key]] = value
        assert x.interp().tolist() == want.tolist()
        assert x.tolist() == want.tolist()
        assert old.tolist() == (X + 0.5).tolist()


@pytest.mark.opencl
def test_a_view_writes_to_the_tensor_it_was_taken_from() -> None:
    x = t()
    want = X.copy()
    x[1:3].assign(t(-X[:2]))
    want[1:3] = -X[:2]
    x[3][2:4].assign(0.0)
    want[3, 2:4] = 0
    x.T[0].flip(0).assign(t(np.arange(4, dtype=np.float32)))
    want[::-1, 0] = np.arange(4)
    assert len(x.schedule().kernels) == 1
    assert x.tolist() == want.tolist()
    assert x.node.op is Op.BUFFER


@pytest.mark.opencl
def test_a_prefix_takes_an_offset_view_of_another_buffer() -> None:
    a, b = t(np.zeros(10, np.float32)), t(np.arange(10, dtype=np.float32))
    a[:4].assign(b[3:7])
    assert len(a.schedule().kernels) <= 1
    assert a.tolist() == [3, 4, 5, 6, 0, 0, 0, 0, 0, 0]
    a[2:8].assign(a[0:6])
    assert a.tolist() == [3, 4, 3, 4, 5, 6, 0, 0, 0, 0]


@pytest.mark.opencl
def test_columns_named_by_a_tensor() -> None:
    a = t(np.zeros((10, 10), np.float32))
    columns = np.array([3, -1, 3])
    a[:, Tensor(columns)] = 1
    assert len(a.schedule().launches) == 1
    want = np.zeros((10, 10), np.float32)
    want[:, columns] = 1
    assert a.tolist() == want.tolist()


def test_only_the_named_columns_are_written() -> None:
    a = t(np.zeros((10, 10), np.float32))
    a[:, Tensor(np.array([3, 7], np.int32))] = 1
    assert a.schedule().bytes_moved == 4 * (2 + 2 * 10)  # the reference: at most 42 elements


def test_a_part_is_written_alone_where_nothing_else_reads_the_old_value() -> None:
    a, y = t(np.zeros((64, 8), np.float32)), t(np.ones((2, 8), np.float32))
    a[10:14:2] = y * 2.0
    assert a.schedule().bytes_moved == 4 * (2 * 8 + 2 * 8)


@pytest.mark.opencl
def test_an_index_outside_writes_nothing() -> None:
    a = t(np.zeros(4, np.float32))
    a[[1, 9, -7]] = t(np.array([1, 2, 3], np.float32))
    assert a.interp().tolist() == a.tolist() == [0, 1, 0, 0]


@pytest.mark.opencl
def test_a_part_of_a_state_is_written_on_every_run() -> None:
    state, x = Tensor.state("s", (4, 3)), Tensor.input("x", (3,))
    whole = state[1:3].assign((x + state[0]).reshape(1, 3).expand(2, 3))
    assert state.node.op is Op.BUFFER, "the handle of a state is its old value"
    with load({"old": state + 0.0, "new": whole + 0.0}, [whole]) as program:
        held = np.zeros((4, 3), np.float32)
        for turn in range(3):
            value = np.full(3, turn + 1, np.float32)
            got = program.run({"x": value})
            assert got["old"].tolist() == held.tolist()
            held[1:3] = value + held[0]
            assert got["new"].tolist() == held.tolist()
        assert program.state("s").tolist() == held.tolist()


@pytest.mark.opencl
def test_rows_of_a_state_by_index() -> None:
    state, rows = Tensor.state("s", (4, 2)), Tensor.input("rows", (2,), dt.int32)
    state[rows] = Tensor.input("x", (2, 2))
    assert state.node.op is Op.ASSIGN
    with load({}, [state]) as program:
        x = np.array([[1, 2], [3, 4]], np.float32)
        program.run({"rows": np.array([2, -4], np.int32), "x": x})
        program.run({"rows": np.array([1, 1], np.int32), "x": x})
        assert program.state("s").tolist() == [[3, 4], [3, 4], [1, 2], [0, 0]]


@pytest.mark.opencl
def test_two_values_of_one_state_are_refused() -> None:
    state = Tensor.state("s", (4,))
    first, second = state.assign(state + 1.0), state.assign(state * 2.0)
    with pytest.raises(SchedulerError, match="assigned"):
        first.schedule(second)
    later = first.assign(first * 3.0)
    assert first.node.op is Op.ADD
    assert later.node.src[1].src[0] is first.node
    assert len(later.schedule().launches) == 1
    np.testing.assert_array_equal(later.numpy(), np.full(4, 3, np.float32))


def test_the_pass_leaves_whole_writes_and_gives_the_same_values() -> None:
    x = t()
    x[1:3, ::2] = 5.0
    whole = merge_assign([x.node])[x.node]
    assert whole.arg is None
    verify([whole])
    verify([x.node])
    (a, b) = evaluate([x.node, whole])
    assert a.tolist() == b.tolist()
    assert merge_assign([whole]) == {n: n for n in merge_assign([whole])}


@pytest.mark.parametrize(
    ("value", "index", "region"),
    [
        ((2, 6), None, ((0, 3, 1), (0, 6, 1))),
        ((4, 6), None, ((0, 5, 1), (0, 6, 1))),
        ((4, 6), None, ((0, 4, 1),)),
        ((4, 2), (2,), ((0, 4, 1), (0, 6, 1))),
        ((4, 2), (2, 1), ((0, 4, 1), None)),
    ],
)
def test_a_region_that_does_not_fit_is_no_node(
    value: tuple[int, ...], index: tuple[int, ...] | None, region: Any
) -> None:
    sources = [t().node, Tensor.input("v", value).node]
    if index:
        sources.append(Tensor.input("i", index, dt.int32).node)
    with pytest.raises(VerifyError, match="ASSIGN"):
        make(Op.ASSIGN, dt.float32, tuple(sources), region)


@pytest.mark.opencl
def test_an_index_beyond_32_bits_is_outside_and_does_not_wrap_around() -> None:
    far = np.array([2**32 + 1, 2, -(2**32) + 3], np.int64)
    a = t(np.zeros(6, np.float32))
    a[Tensor(far)] = 1.0
    assert a.tolist() == [0, 0, 1, 0, 0, 0]
    c = t(np.zeros(6, np.float32))
    c[Tensor(far)] = t(np.array([1, 2, 3], np.float32))
    assert c.tolist() == [0, 0, 2, 0, 0, 0]
    b = t(np.zeros(6, np.float32))
    b[Tensor(np.array([2**32 - 1, 4], np.uint32))] = 1.0
    assert b.tolist() == [0, 0, 0, 0, 1, 0]
