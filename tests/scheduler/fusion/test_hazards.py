"""Programs in which loop nests that share a launch, or a state, could get in each other's way.

Squares, so that an axis could be taken for the other one; sizes that lanes do not divide; results
of several shapes and types in one loop nest; states read old and new, written whole and in part.
All values are small whole numbers: whatever the order of a sum, results are exact. Each program is
written once, on what `Tensors` gives, and on arrays of numpy that have the same methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from scheduler import CustomKernel, Tensor, custom_kernel
from scheduler.emit.schedule import Schedule
from scheduler.ir import dtype as dt
from scheduler.ir.index import leaves
from tests.scheduler.fusion.plain import Plain
from tests.scheduler.support.programs import Array, plan_for, plan_of
from tests.scheduler.support.together import Together

N = 20
STATES = {"s": (N, N), "t": (N, N), "u": (N, N), "r": (N, 1), "j": (N, 2 * N)}
TWO = CustomKernel(
    "two",
    "const int i = get_global_id(0); out0[i] = in0[i] * 2.0f; out1[i] = in0[i] + 1.0f;",
    [((N, N), dt.float32), ((N, N), dt.float32)],
    N * N,
)


def ints(*shape: int, seed: int = 9) -> Array:
    return np.random.default_rng((seed, *shape)).integers(-3, 4, shape).astype(np.float32)


GIVEN: dict[str, Array] = {
    "x": ints(N, N),
    "y": ints(N, N, seed=1),
    "v": ints(N),
    "a": ints(33, 33),
    "b": ints(33, 33, seed=2),
    "w": ints(1),
    "i": np.array([3, 0, 2, 2, 1], np.int32),
}
# Outputs, and by name the new values of states.
Made = tuple[list[Any], dict[str, Any]]


@cache
def tensor(name: str) -> Tensor:
    if name in STATES:
        return Tensor.state(name, STATES[name])
    return Tensor.input(name, GIVEN[name].shape, dt.from_numpy(GIVEN[name].dtype))


class Tensors:
    """Gives inputs and states by name, and what is done with them."""

    kind: Any = Tensor

    def __call__(self, names: str) -> list[Any]:
        return [tensor(name) for name in names]

    def put(self, state: Any, value: Any, rows: slice = slice(None)) -> Any:
        return state[rows].assign(value) if rows != slice(None) else state.assign(value)

    def two(self, value: Any) -> tuple[Any, ...]:
        return tuple(custom_kernel(TWO, value))


class Arrays(Tensors):
    """The same with numpy, for states of some values."""

    kind = Plain

    def __init__(self, old: Mapping[str, Array]) -> None:
        self.values = {**GIVEN, **old}

    def __call__(self, names: str) -> list[Any]:
        return [Plain(self.values[name]) for name in names]

    def put(self, state: Any, value: Any, rows: slice = slice(None)) -> Any:
        new = state.copy()
        new[rows] = value
        return new

    def two(self, value: Any) -> tuple[Any, ...]:
        return value * 2.0, value + 1.0


def rows_and_columns(of: Tensors) -> Made:
    """Loops that only run over rows, only over columns, and over both."""
    x, y, v = of("xyv")
    return [v * 2.0, x.sum(1), x + y, x.T * 2.0, (x * y).sum(0), y.max(1)], {}


def shapes_and_types(of: Tensors) -> Made:
    x, y, v = of("xyv")
    outputs = [x.sum(), v + 1.0, x * 2.0, (x.sum() + v).sum(), (x > 0.0).sum(1), x > y]
    return [*outputs, x.abs().cast(dt.uint8), x.half(), x.cast(dt.int64)], {}


def overlapping_blocks_of_bools(of: Tensors) -> Made:
    a, b = of("ab")
    more = a > b
    return [more, more.T, (a > 0.0).logical_not(), a.max(1) > b.max(0), more.sum(1)], {}


def rows_kept_in_an_array(of: Tensors) -> Made:
    (a,) = of("a")
    q = (a - a.max(1, keepdim=True)).square() + 1.0
    total = q.sum(1, keepdim=True)
    return [q.sum(1), q, q - total, (q - total).max(1), (q * total).T], {}


def states_cross(of: Tensors) -> Made:
    s, t, x, y = of("stxy")
    first, second = of.put(s, x - t.T), of.put(t, s.T + y)
    return [first + second.T, s * 2.0, t.sum(0), first], {"s": first, "t": second}


def part_of_a_state(of: Tensors, outputs: Callable[[Any, Any], list[Any]]) -> Made:
    """Rows 2 to 6 are written alone, or merged with the old ones where those are read."""
    s, x = of("sx")
    push = of.put(s, x[0:5] * 2.0, slice(2, 7))
    return outputs(s, push), {"s": push}


def part_old_and_new(of: Tensors) -> Made:
    (y,) = of("y")
    return part_of_a_state(of, lambda s, p: [p, s, s.T + y, p[2:7] + 1.0, p[0:5] * 1.0])


def part_new_beside_the_same_value(of: Tensors) -> Made:
    (x,) = of("x")
    return part_of_a_state(of, lambda _, p: [x[0:5] * 2.0, p[2:7] + 1.0, p[3:8] * 1.0])


def part_beside_the_old_state_as_output(of: Tensors) -> Made:
    return part_of_a_state(of, lambda s, p: [p[2:7] + 1.0, s])


def part_is_summed_with_the_rest(of: Tensors) -> Made:
    """What is not written keeps its old value, also where a sum runs over it."""
    return part_of_a_state(of, lambda _, p: [p.sum(0), p.sum(1), p.flip(0).max(0)])


def custom_reads_a_state_written_in_part(of: Tensors) -> Made:
    return part_of_a_state(of, lambda _, p: [*of.two(p)])


def part_feeds_another_state(of: Tensors) -> Made:
    s, t, x = of("stx")
    push = of.put(s, (x[0:5] * 2.0).contiguous(), slice(2, 7))
    other = of.put(t, (push[1:6].sum(0, keepdim=True) + t * 2.0).minimum(99.0).maximum(-99.0))
    return [push[2:7], other.T, t[:3]], {"s": push, "t": other}


def part_shifts_itself(of: Tensors) -> Made:
    s, x = of("sx")
    push = of.put(s, s[1:6] + x[0:5], slice(2, 7))
    return [push], {"s": push}


def head_of_a_state_is_summed_with_the_rest(of: Tensors) -> Made:
    s, x = of("sx")
    push = of.put(s, x[0:10] * 2.0, slice(10))
    return [push.sum(0)], {"s": push}


def state_of_rows_is_read_by_every_column(of: Tensors) -> Made:
    """The row is stored outside the loop over columns, which still reads the old one."""
    x, y, v, w, r = of("xyvwr")
    column = v.reshape(N, 1)
    return [y * column + w, x + r + w], {"r": of.put(r, column * 2.0)}


def one_value_everywhere(of: Tensors) -> Made:
    """An output three times, turned round, and the new value of two states."""
    s, t, x, y = of("stxy")
    q = x @ y
    first, second = of.put(s, q), of.put(t, q)
    return [q, q, q.T, s, first, second + t], {"s": first, "t": second}


def states_exchange(of: Tensors) -> Made:
    s, t = of("st")
    first, second = of.put(s, t + 1.0), of.put(t, s)
    return [first - second], {"s": first, "t": second}


def join_whose_parts_are_read(of: Tensors) -> Made:
    x, y = of("xy")
    parts = [x @ y, x.sum(1, keepdim=True), (y @ x)[:, :3], x]
    return [of.kind.cat(parts, 1), parts[0] * 2.0, parts[1] + x, parts[2].sum(0)], {}


def join_becomes_a_state(of: Tensors) -> Made:
    s, j, x, y = of("sjxy")
    wide, push = of.put(j, of.kind.cat([x @ y, s], 1)), of.put(s, x @ y)
    return [wide.sum(1)], {"j": wide, "s": push}


def custom_result_nobody_reads(of: Tensors) -> Made:
    x, y = of("xy")
    _, second = of.two(x + y)
    return [second, second + 1.0, (x + y).T], {}


def custom_reads_an_old_state(of: Tensors) -> Made:
    s, x = of("sx")
    double, more = of.two(s)
    push = of.put(s, (double + x).minimum(99.0).maximum(-99.0))
    return [more.T, push.sum(0)], {"s": push}


def custom_reads_a_new_state(of: Tensors) -> Made:
    s, t, x = of("stx")
    push = of.put(s, x)
    double, more = of.two(push)
    other = of.put(t, more + s)
    return [double.T, s * 1.0, other], {"s": push, "t": other}


def many_readers_of_one_input(of: Tensors) -> Made:
    """Sums of rows, a quotient, a maximum of all, parts of a join, and a state."""
    a, y, b, s = of("xyvs")
    total, most = a.sum(1, keepdim=True), a.max()
    join = of.kind.cat([a @ y[:, :5], (a * b).sum(1, keepdim=True), a[:, :2]], 1)
    outputs = [a.sum(1), a.abs(), a * (total + 100.0), a.T * 2.0, most, most * 2.0, join, s.sum(0)]
    return outputs, {"s": of.put(s, a + s)}


def old_and_new(of: Tensors) -> Made:
    """Reads before the assignment see the old version, those after it the new one."""
    s, x = of("sx")
    old, new = s * 10.0, of.put(s, s + x)
    after = new * 100.0
    return [old.flip(0), after, old + after.flip(0)], {"s": new}


def states_in_a_ring(of: Tensors) -> Made:
    s, t, u = of("stu")
    new = {"s": of.put(s, u + 1.0), "t": of.put(t, s + 2.0), "u": of.put(u, t + 3.0)}
    return [(s + t + u).flip(0)], new


def states_that_would_be_a_cycle(of: Tensors) -> Made:
    """Each result needs the other state's old value and the own new one: commits break the ring."""
    s, t = of("st")
    first, second = of.put(s, t.flip(0) + 1.0), of.put(t, s.flip(0) + 2.0)
    return [first + t, second + s], {"s": first, "t": second}


ITSELF: dict[str, Callable[[Any, Any], Any]] = {
    "transposed": lambda s, _: s + s.T,
    "turned": lambda s, _: s.flip(0) + 1.0,
    "shifted": lambda s, kind: kind.cat([s[1:], s[:1] + 1.0]),
    "summed": lambda s, _: s.sum(0, keepdim=True).minimum(9.0) - s,
    "padded": lambda s, _: (s + 1.0)[:-1].pad([(1, 0), (0, 0)], 5.0),
    "not moved": lambda s, _: s * 2.0,
}


def state_of_itself(of: Tensors, how: str) -> Made:
    """A state is made of its old value; other elements of that must still be there."""
    s, x = of("sx")
    new = of.put(s, ITSELF[how](s, of.kind) + x)
    return [s.max()] if how == "not moved" else [], {"s": new}


def row_of_a_computed_table(of: Tensors, table: str, form: str) -> Made:
    """An index that is known at run time, of values that are not loaded."""
    steps, twos = of.kind.arange(5), of.kind.full((3,), 2.0).pad([(1, 1)], 7.0)
    (index,) = of("i")
    value = (steps if table == "steps" else twos).gather(index, 0)
    two = [value + 1, value * 2]
    return {"alone": [value], "summed": [value.sum()], "two results": two}[form], {}


PROGRAMS = {
    f.__name__: f
    for f in (
        *(rows_and_columns, shapes_and_types, overlapping_blocks_of_bools, rows_kept_in_an_array),
        *(states_cross, part_old_and_new, part_new_beside_the_same_value, part_shifts_itself),
        *(part_beside_the_old_state_as_output, part_feeds_another_state, one_value_everywhere),
        *(part_is_summed_with_the_rest, states_exchange, join_whose_parts_are_read),
        *(join_becomes_a_state, custom_result_nobody_reads, custom_reads_an_old_state),
        *(custom_reads_a_new_state, custom_reads_a_state_written_in_part, old_and_new),
        *(many_readers_of_one_input, states_in_a_ring, states_that_would_be_a_cycle),
    )
} | {f"state {how}": partial(state_of_itself, how=how) for how in ITSELF}
CHOSEN = {
    f"{table} {form}": partial(row_of_a_computed_table, table=table, form=form)
    for table in ("steps", "padded")
    for form in ("alone", "summed", "two results")
}
ALONE = (head_of_a_state_is_summed_with_the_rest, state_of_rows_is_read_by_every_column)
ALL = {**PROGRAMS, **CHOSEN, **{f.__name__: f for f in ALONE}}


def plan(build: Callable[[Tensors], Made]) -> Schedule:
    outputs, writes = build(Tensors())
    return plan_of({f"o{i}": t for i, t in enumerate(outputs)}, [*writes.values()])


@pytest.fixture(scope="module", params=["", "5"])
def programs(request: pytest.FixtureRequest) -> Iterator[Together]:
    """The programs, with as many buffers in a launch as there are, and with few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAX_KERNEL_BUFFERS", request.param)
        with Together({name: partial(plan, f) for name, f in ALL.items()}) as together:
            yield together


def check(programs: Together, name: str) -> None:
    """Run several times where there is state; every bit must be what numpy says."""
    old = {state: np.zeros(shape, np.float32) for state, shape in STATES.items()}
    compiled, entry = programs.entry(name)
    feed = {spec.name: GIVEN[spec.name] for spec in compiled.entry_inputs(entry)}
    turns = 4 if ALL[name](Arrays(old))[1] else 1
    for _ in range(turns):
        want, new = ALL[name](Arrays(old))
        got = compiled.run(feed, entry)
        assert len(got) == len(want)
        for i, expected in enumerate(want):
            plain = np.asarray(expected)
            np.testing.assert_array_equal(got[f"o{i}"], plain, err_msg=f"o{i}", strict=True)
        for state, expected in new.items():
            np.testing.assert_array_equal(compiled.state(state), expected, err_msg=state)
        old |= {state: np.asarray(value) for state, value in new.items()}


@pytest.mark.opencl
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_launch_leaves_what_numpy_says(programs: Together, name: str) -> None:
    check(programs, name)


@pytest.mark.opencl
def test_what_a_write_leaves_alone_is_summed_as_it_was(programs: Together) -> None:
    check(programs, "head_of_a_state_is_summed_with_the_rest")


@pytest.mark.opencl
def test_a_row_of_a_state_is_read_before_it_is_stored(programs: Together) -> None:
    check(programs, "state_of_rows_is_read_by_every_column")


@pytest.mark.opencl
@pytest.mark.parametrize("name", CHOSEN)
def test_rows_of_a_computed_table_are_chosen_by_an_input(programs: Together, name: str) -> None:
    check(programs, name)


# --- what a launch takes -------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [4, 5, 6])
def test_a_weight_read_in_several_orders_is_several_buffers(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAX_KERNEL_BUFFERS", str(limit))
    w, x = Tensor.weight(ints(N, N, seed=3)), tensor("x")
    lowered = plan_for(w + x, w.T * x, w.flip(0) - x).lowered
    assert max(len(k.storage) + len(k.arguments) for k in lowered) <= limit


def test_loops_that_leave_out_different_ranges_are_not_one_nest() -> None:
    x, v = Tensor.input("x", (256, 256)), Tensor.input("v", (256,))
    for kernel in plan_for(x * 2.0 + v, (x * v).max(1), v * 3.0).launches:
        for body in kernel.bodies:
            named = {frozenset(a for ix in s.index for a in leaves(ix)) for s in body.stores}
            shorter = [n for n in named if len(n) < len(body.ranges)]
            assert len(shorter) <= 1
