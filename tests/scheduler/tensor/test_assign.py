"""Assignment, whole and in part, to realized buffers, states and what is not computed yet."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scheduler import Tensor
from scheduler.errors import ModelError, SchedulerError
from scheduler.ir import dtype as dt
from scheduler.ir.interp import evaluate
from scheduler.ir.ops import Op
from scheduler.ir.verify import verify
from scheduler.passes.merge_assign import merge_assign
from tests.scheduler.support.programs import Array, load
from tests.scheduler.tensor.eager import equal, t, zeros
from tests.support.selection import quick_cases

pytestmark = pytest.mark.opencl
X = np.arange(24, dtype=np.float32).reshape(4, 6)


def test_the_buffer_stays_and_old_readers_keep_old_values() -> None:
    x = t(X)
    buffer = x.node.arg
    old, view = x + 1.0, x.T
    assert x.assign(x * 2.0) is x
    assert x.node.src[0].arg is buffer
    new = x + 1.0
    x.realize()
    assert x.node.arg is buffer
    equal((x, X * 2), (old, X + 1), (view, X.T), (new, X * 2 + 1))


@pytest.mark.parametrize("first", [0, 1])
def test_old_and_new_in_one_run(first: int) -> None:
    x = t(X)
    old = x.sum(0)
    x.assign(x * 3.0 + 1.0)
    both = [old, x]
    assert len(both[first].schedule(both[1 - first]).kernels) <= 2
    both[first].realize(both[1 - first])
    equal((old, X.sum(0)), (x, X * 3 + 1))


def test_reading_a_new_value_performs_the_assignment() -> None:
    x = t(X)
    x.assign(x + 1.0)
    total = x.sum()
    assert total.item() == (X + 1).sum()
    assert x.node.op is Op.BUFFER
    equal((x, X + 1))


def test_a_value_that_reads_its_target_elsewhere_goes_through_a_temporary() -> None:
    square = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    x = t(square)
    x.assign(x.T)
    plan = x.schedule()
    assert len(plan.copies) == 1
    assert plan.peak_bytes == square.nbytes
    equal((x, square.T))
    x.assign(x + x.flip(0))
    equal((x, square.T + square.T[::-1]))


def test_m04_chained_conversions_are_one_kernel_in_place() -> None:
    want = np.linspace(-1, 1, 1024, dtype=np.float32).reshape(32, 32)
    x = t(want)
    for kind in (dt.float16, dt.float32, dt.float16, dt.float32):
        x.assign(x.cast(kind).float())
    plan = x.schedule()
    assert (len(plan.launches), plan.peak_bytes, len(plan.outputs)) == (1, 0, 0)
    equal((x, want.astype(np.float16).astype(np.float32)))


def test_k15_only_the_last_assignment_is_stored() -> None:
    x = t(X)
    x.assign(x + 1.0)
    between = x * 10.0
    x.assign(x + 1.0)
    x.assign(x * 2.0)
    assert [n for n in (x.node.src[1].src[0], between.node.src[0]) if n.op is Op.ASSIGN] == []
    assert x.schedule(between).inputs == ()
    x.realize(between)
    equal((x, (X + 2) * 2), (between, (X + 1) * 10))


def test_k16_what_is_not_realized_just_takes_the_value() -> None:
    a, y = t(X), t(X * 2)
    assert (a + 1.0).assign(y).node is y.node
    made = Tensor.zeros(4, 6)
    made.assign(a * 2.0)
    pinned = (a + 1.0).kernelize()
    pinned.assign(a * 3.0)
    assert [made.node.op, pinned.node.op] == [Op.MUL, Op.MUL]
    equal((pinned, X * 3), (Tensor.empty(4, 6).assign(a + 1.0), X + 1))


def test_a_result_that_was_overwritten_is_not_found_again() -> None:
    a, b = t(X), t(X + 1)
    c = (a + b).realize()
    c.assign(c * 0.0).realize()
    equal((a + b, X + X + 1))
    first = (a * 2.0).realize()
    a.assign(a + 1.0).realize()
    equal((a * 2.0, (X + 1) * 2), (first, X * 2))


def test_an_old_view_that_is_written_to_leaves_the_new_value_alone() -> None:
    x = t(X)
    view = x[0:2]
    x.assign(x + 1.0)
    view.assign(view * 0.0)
    x.realize(view)
    equal((x, X + 1), (view, X[:2] * 0))


def test_what_does_not_fit_is_refused() -> None:
    x = t(X)
    for target, value in ((x, t(X[:2])), (x, Tensor(X.astype(np.int32)))):
        with pytest.raises(ModelError, match="cannot take"):
            target.assign(value)
    with pytest.raises(ModelError, match="repeats elements"):
        t(X[:1]).expand(4, 6).assign(x)
    with pytest.raises(ModelError, match="does not expand"):
        x[1:3] = t(X)


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
KINDS: dict[str, Callable[[], Tensor]] = {
    "realized": lambda: t(X),
    "assigned": lambda: t(X * 0).assign(t(X)),
    "computed": lambda: t(X * 2) * 0.5,
    "view": lambda: t(X.T.copy()).T,
}


@pytest.mark.parametrize("kind", quick_cases(KINDS, "computed", "view"))
def test_a_part_is_replaced(kind: str) -> None:
    """By a number and by an array, for each key; all of them are realized as one program."""
    made: dict[str, tuple[Tensor, Tensor, Array]] = {}
    for name, key in KEYS.items():
        part = -1 - np.arange(X[key].size, dtype=np.float32).reshape(X[key].shape)
        for value in (7.0, part):
            x, want = KINDS[kind](), X.copy()
            old = x + 0.5
            x[key] = value if isinstance(value, float) else Tensor(value)
            want[key] = value
            assert x.interp().tolist() == want.tolist(), name
            made[f"{name} by {type(value).__name__}"] = x, old, want
    first, *others = (x for x, _, _ in made.values())
    first.realize(*others)
    first, *others = (old for _, old, _ in made.values())
    first.realize(*others)
    for name, (x, old, want) in made.items():
        assert x.tolist() == want.tolist(), name
        assert old.tolist() == (X + 0.5).tolist(), name


def test_a_view_writes_to_the_tensor_it_was_taken_from() -> None:
    x = t(X)
    want = X.copy()
    x[1:3].assign(t(-X[:2]))
    want[1:3] = -X[:2]
    x[3][2:4].assign(0.0)
    want[3, 2:4] = 0
    x.T[0].flip(0).assign(t(np.arange(4)))
    want[::-1, 0] = np.arange(4)
    assert len(x.schedule().kernels) == 1
    equal((x, want))
    assert x.node.op is Op.BUFFER


def test_a_prefix_takes_an_offset_view_of_another_buffer() -> None:
    a, b = zeros(10), t(np.arange(10))
    a[:4].assign(b[3:7])
    assert len(a.schedule().kernels) <= 1
    equal((a, [3, 4, 5, 6, 0, 0, 0, 0, 0, 0]))
    a[2:8].assign(a[0:6])
    equal((a, [3, 4, 3, 4, 5, 6, 0, 0, 0, 0]))


def test_columns_named_by_a_tensor() -> None:
    a, want = zeros(10, 10), np.zeros((10, 10))
    columns = np.array([3, -1, 3])
    a[:, Tensor(columns)] = 1
    assert len(a.schedule().launches) == 1
    want[:, columns] = 1
    equal((a, want))


def test_only_the_part_is_written_where_nothing_else_reads_the_old_value() -> None:
    a = zeros(10, 10)
    a[:, Tensor(np.array([3, 7], np.int32))] = 1
    assert a.schedule().bytes_moved == 4 * (2 + 2 * 10)  # the reference: at most 42 elements
    b = zeros(64, 8)
    b[10:14:2] = t(np.ones((2, 8))) * 2.0
    assert b.schedule().bytes_moved == 4 * (2 * 8 + 2 * 8)


def test_an_index_outside_writes_nothing_and_does_not_wrap_around() -> None:
    near, a, b, c = zeros(4), zeros(6), zeros(6), zeros(6)
    near[[1, 9, -7]] = t([1, 2, 3])
    assert near.interp().tolist() == [0, 1, 0, 0]
    far = np.array([2**32 + 1, 2, -(2**32) + 3], np.int64)
    a[Tensor(far)] = 1.0
    b[Tensor(far)] = t([1, 2, 3])
    c[Tensor(np.array([2**32 - 1, 4], np.uint32))] = 1.0
    near.realize(a, b, c)
    equal((near, [0, 1, 0, 0]), (a, [0, 0, 1, 0, 0, 0]), (b, [0, 0, 2, 0, 0, 0]))
    equal((c, [0, 0, 0, 0, 1, 0]))


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


def test_rows_of_a_state_by_index() -> None:
    state, rows = Tensor.state("s", (4, 2)), Tensor.input("rows", (2,), dt.int32)
    state[rows] = Tensor.input("x", (2, 2))
    assert state.node.op is Op.ASSIGN
    with load({}, [state]) as program:
        for at in ([2, -4], [1, 1]):
            x = np.array([[1, 2], [3, 4]], np.float32)
            program.run({"rows": np.array(at, np.int32), "x": x})
        assert program.state("s").tolist() == [[3, 4], [3, 4], [1, 2], [0, 0]]


def test_two_values_of_one_state_are_refused() -> None:
    state = Tensor.state("s", (4,))
    first, second = state.assign(state + 1.0), state.assign(state * 2.0)
    with pytest.raises(SchedulerError, match="assigned"):
        first.schedule(second)
    later = first.assign(first * 3.0)
    assert first.node.op is Op.ADD
    assert later.node.src[1].src[0] is first.node
    assert len(later.schedule().launches) == 1
    equal((later, [3, 3, 3, 3]))


def test_the_pass_leaves_whole_writes_and_gives_the_same_values() -> None:
    x = t(X)
    x[1:3, ::2] = 5.0
    whole = merge_assign([x.node])[x.node]
    assert whole.arg is None
    verify([whole])
    verify([x.node])
    (a, b) = evaluate([x.node, whole])
    assert a.tolist() == b.tolist()
    assert merge_assign([whole]) == {n: n for n in merge_assign([whole])}
