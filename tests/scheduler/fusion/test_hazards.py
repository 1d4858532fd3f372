"""Programs in which loop nests that share a launch, or a state, could get in each other's way.

Squares, so that an axis could be taken for the other one; sizes that lanes do not divide; results
of several shapes and types in one loop nest; states read old and new, written whole and in part.
All values are small whole numbers: whatever the order of a sum, results are exact. Each program is
written once, for what `Tensors` gives, and for arrays of numpy that have the same methods.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from inspect import signature
from typing import Any

import numpy as np
import pytest

from scheduler import CustomKernel, Tensor, custom_kernel
from scheduler.emit.schedule import Schedule
from scheduler.ir import dtype as dt
from scheduler.ir.index import leaves
from tests.scheduler.fusion.plain import Plain
from tests.scheduler.support.programs import Array, plan_for, plan_of
from tests.scheduler.support.together import UNOPTIMIZED, Together
from tests.support.selection import quick_cases

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
Build = Callable[..., list[Any] | Made]


@cache
def tensor(name: str) -> Tensor:
    if name in STATES:
        return Tensor.state(name, STATES[name])
    return Tensor.input(name, GIVEN[name].shape, dt.from_numpy(GIVEN[name].dtype))


class Tensors:
    """Builds a program of what its parameters name: inputs, states, and what is done with them."""

    kind: Any = Tensor

    def made(self, build: Build) -> Made:
        made = build(*(self.named(name) for name in signature(build).parameters))
        return made if isinstance(made, tuple) else (made, {})

    def named(self, name: str) -> Any:
        return getattr(self, name) if hasattr(self, name) else tensor(name)

    @property
    def cat(self) -> Any:
        return self.kind.cat

    def put(self, state: Any, value: Any, rows: slice = slice(None)) -> Any:
        return state[rows].assign(value) if rows != slice(None) else state.assign(value)

    def two(self, value: Any) -> tuple[Any, ...]:
        return tuple(custom_kernel(TWO, value))


class Arrays(Tensors):
    """The same with numpy, for states of some values."""

    kind = Plain

    def __init__(self, old: Mapping[str, Array]) -> None:
        self.values = {**GIVEN, **old}

    def named(self, name: str) -> Any:
        return getattr(self, name) if hasattr(self, name) else Plain(self.values[name])

    def put(self, state: Any, value: Any, rows: slice = slice(None)) -> Any:
        new = state.copy()
        new[rows] = value
        return new

    def two(self, value: Any) -> tuple[Any, ...]:
        return value * 2.0, value + 1.0


def shapes_and_types(x: Any, y: Any, v: Any) -> list[Any]:
    outputs = [x.sum(), v + 1.0, x * 2.0, (x.sum() + v).sum(), (x > 0.0).sum(1), x > y]
    return [*outputs, x.abs().cast(dt.uint8), x.half(), x.cast(dt.int64)]


def rows_kept_in_an_array(a: Any) -> list[Any]:
    q = (a - a.max(1, keepdim=True)).square() + 1.0
    total = q.sum(1, keepdim=True)
    return [q.sum(1), q, q - total, (q - total).max(1), (q * total).T]


def join_whose_parts_are_read(x: Any, y: Any, cat: Any) -> list[Any]:
    parts = [x @ y, x.sum(1, keepdim=True), (y @ x)[:, :3], x]
    return [cat(parts, 1), parts[0] * 2.0, parts[1] + x, parts[2].sum(0)]


def custom_result_nobody_reads(x: Any, y: Any, two: Any) -> list[Any]:
    _, second = two(x + y)
    return [second, second + 1.0, (x + y).T]


def row_of_a_computed_table(table: str, form: Callable[[Any], list[Any]]) -> Build:
    """An index that is known at run time, of values that are not loaded."""

    def build(i: Any, kind: Any) -> list[Any]:
        steps, twos = kind.arange(5), kind.full((3,), 2.0).pad([(1, 1)], 7.0)
        return form((steps if table == "steps" else twos).gather(i, 0))

    return build


FORMS: dict[str, Callable[[Any], list[Any]]] = {
    "alone": lambda value: [value],
    "summed": lambda value: [value.sum()],
    "two results": lambda value: [value + 1, value * 2],
}
OUTPUTS: dict[str, Build] = {
    "loops over rows, columns, and both": lambda x, y, v: [
        *(v * 2.0, x.sum(1), x + y, x.T * 2.0, (x * y).sum(0), y.max(1))
    ],
    "overlapping blocks of bools": lambda a, b: [
        *(a > b, (a > b).T, (a > 0.0).logical_not(), a.max(1) > b.max(0), (a > b).sum(1))
    ],
    "shapes and types": shapes_and_types,
    "rows kept in an array": rows_kept_in_an_array,
    "join whose parts are read": join_whose_parts_are_read,
    "custom result nobody reads": custom_result_nobody_reads,
    **{
        f"{table} {form}": row_of_a_computed_table(table, FORMS[form])
        for table in ("steps", "padded")
        for form in FORMS
    },
}


def states_cross(s: Any, t: Any, x: Any, y: Any, put: Any) -> Made:
    first, second = put(s, x - t.T), put(t, s.T + y)
    return [first + second.T, s * 2.0, t.sum(0), first], {"s": first, "t": second}


def states_exchange(s: Any, t: Any, put: Any) -> Made:
    first, second = put(s, t + 1.0), put(t, s)
    return [first - second], {"s": first, "t": second}


def old_and_new(s: Any, x: Any, put: Any) -> Made:
    """Reads before the assignment see the old version, those after it the new one."""
    old, new = s * 10.0, put(s, s + x)
    after = new * 100.0
    return [old.flip(0), after, old + after.flip(0)], {"s": new}


def states_in_a_ring(s: Any, t: Any, u: Any, put: Any) -> Made:
    new = {"s": put(s, u + 1.0), "t": put(t, s + 2.0), "u": put(u, t + 3.0)}
    return [(s + t + u).flip(0)], new


def states_that_would_be_a_cycle(s: Any, t: Any, put: Any) -> Made:
    """Each result needs the other state's old value and the own new one: commits break the ring."""
    first, second = put(s, t.flip(0) + 1.0), put(t, s.flip(0) + 2.0)
    return [first + t, second + s], {"s": first, "t": second}


def one_value_everywhere(s: Any, t: Any, x: Any, y: Any, put: Any) -> Made:
    """An output three times, turned round, and the new value of two states."""
    q = x @ y
    first, second = put(s, q), put(t, q)
    return [q, q, q.T, s, first, second + t], {"s": first, "t": second}


def many_readers_of_one_input(x: Any, y: Any, v: Any, s: Any, put: Any, cat: Any) -> Made:
    """Sums of rows, a quotient, a maximum of all, parts of a join, and a state."""
    total, most = x.sum(1, keepdim=True), x.max()
    join = cat([x @ y[:, :5], (x * v).sum(1, keepdim=True), x[:, :2]], 1)
    outputs = [x.sum(1), x.abs(), x * (total + 100.0), x.T * 2.0, most, most * 2.0, join, s.sum(0)]
    return outputs, {"s": put(s, x + s)}


def join_becomes_a_state(s: Any, j: Any, x: Any, y: Any, put: Any, cat: Any) -> Made:
    wide, push = put(j, cat([x @ y, s], 1)), put(s, x @ y)
    return [wide.sum(1)], {"j": wide, "s": push}


def stored_as_asked(x: Any, s: Any, put: Any) -> Made:
    """An output, a state, and what is made contiguous between them."""
    inner = x + 1.0
    pinned = (inner * 2.0).contiguous()
    return [inner, pinned.sum(0)], {"s": put(s, pinned.flip(0))}


def head_is_summed_with_the_rest(s: Any, x: Any, put: Any) -> Made:
    push = put(s, x[0:10] * 2.0, slice(10))
    return [push.sum(0)], {"s": push}


def row_is_read_by_every_column(x: Any, y: Any, v: Any, w: Any, r: Any, put: Any) -> Made:
    """The row is stored outside the loop over columns, which still reads the old one."""
    column = v.reshape(N, 1)
    return [y * column + w, x + r + w], {"r": put(r, column * 2.0)}


def part_feeds_another_state(s: Any, t: Any, x: Any, put: Any) -> Made:
    push = put(s, (x[0:5] * 2.0).contiguous(), slice(2, 7))
    other = put(t, (push[1:6].sum(0, keepdim=True) + t * 2.0).minimum(99.0).maximum(-99.0))
    return [push[2:7], other.T, t[:3]], {"s": push, "t": other}


def part_shifts_itself(s: Any, x: Any, put: Any) -> Made:
    push = put(s, s[1:6] + x[0:5], slice(2, 7))
    return [push], {"s": push}


def custom_reads_an_old_state(s: Any, x: Any, put: Any, two: Any) -> Made:
    double, more = two(s)
    push = put(s, (double + x).minimum(99.0).maximum(-99.0))
    return [more.T, push.sum(0)], {"s": push}


def custom_reads_a_new_state(s: Any, t: Any, x: Any, put: Any, two: Any) -> Made:
    push = put(s, x)
    double, more = two(push)
    other = put(t, more + s)
    return [double.T, s * 1.0, other], {"s": push, "t": other}


# Rows 2 to 6 of s are written alone, or merged with the old ones where those are read; p is new.
PARTS: dict[str, Callable[..., list[Any]]] = {
    "old and new": lambda s, p, y: [p, s, s.T + y, p[2:7] + 1.0, p[0:5] * 1.0],
    "new beside the same value": lambda x, p: [x[0:5] * 2.0, p[2:7] + 1.0, p[3:8] * 1.0],
    "beside the old state as output": lambda s, p: [p[2:7] + 1.0, s],
    "summed with the rest": lambda p: [p.sum(0), p.sum(1), p.flip(0).max(0)],
    "read by a custom kernel": lambda p, two: [*two(p)],
}
# A state is made of its old value; other elements of that must still be there.
ITSELF: dict[str, Callable[[Any, Any], Any]] = {
    "transposed": lambda s, _: s + s.T,
    "turned": lambda s, _: s.flip(0) + 1.0,
    "shifted": lambda s, cat: cat([s[1:], s[:1] + 1.0]),
    "summed": lambda s, _: s.sum(0, keepdim=True).minimum(9.0) - s,
    "padded": lambda s, _: (s + 1.0)[:-1].pad([(1, 0), (0, 0)], 5.0),
    "not moved": lambda s, _: s * 2.0,
}


def part_of_a_state(how: str) -> Build:
    def build(s: Any, x: Any, y: Any, put: Any, two: Any) -> Made:
        push = put(s, x[0:5] * 2.0, slice(2, 7))
        given = {"s": s, "x": x, "y": y, "two": two, "p": push}
        return PARTS[how](*map(given.get, signature(PARTS[how]).parameters)), {"s": push}

    return build


def state_of_itself(how: str) -> Build:
    def build(s: Any, x: Any, put: Any, cat: Any) -> Made:
        return [s.max()], {"s": put(s, ITSELF[how](s, cat) + x)}

    return build


PROGRAMS: dict[str, Build] = {
    **OUTPUTS,
    **{f"part, {how}": part_of_a_state(how) for how in PARTS},
    **{f"state {how}": state_of_itself(how) for how in ITSELF},
    "states cross": states_cross,
    "states are exchanged": states_exchange,
    "old and new": old_and_new,
    "states in a ring": states_in_a_ring,
    "states that would be a cycle": states_that_would_be_a_cycle,
    "one value everywhere": one_value_everywhere,
    "many readers of one input": many_readers_of_one_input,
    "join becomes a state": join_becomes_a_state,
    "stored as asked": stored_as_asked,
    "part feeds another state": part_feeds_another_state,
    "part shifts itself": part_shifts_itself,
    "custom reads an old state": custom_reads_an_old_state,
    "custom reads a new state": custom_reads_a_new_state,
    "head is summed with the rest": head_is_summed_with_the_rest,
    "row is read by every column": row_is_read_by_every_column,
}


def plan(build: Build) -> Schedule:
    outputs, writes = Tensors().made(build)
    return plan_of({f"o{i}": t for i, t in enumerate(outputs)}, [*writes.values()])


@pytest.fixture(scope="module", params=quick_cases(["", "5"], "5"))
def programs(request: pytest.FixtureRequest) -> Iterator[Together]:
    """The programs, with as many buffers in a launch as there are, and with few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAX_KERNEL_BUFFERS", request.param)
        makers = {name: partial(plan, f) for name, f in PROGRAMS.items()}
        with Together(makers, UNOPTIMIZED) as together:
            yield together


@pytest.mark.opencl
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_launch_leaves_what_numpy_says(programs: Together, name: str) -> None:
    """Run several times where there is state; every bit must be what numpy says."""
    old = {state: np.zeros(shape, np.float32) for state, shape in STATES.items()}
    compiled, entry = programs.entry(name)
    feed = {spec.name: GIVEN[spec.name] for spec in compiled.entry_inputs(entry)}
    turns = 4 if Arrays(old).made(PROGRAMS[name])[1] else 1
    for _ in range(turns):
        want, new = Arrays(old).made(PROGRAMS[name])
        got = compiled.run(feed, entry)
        assert len(got) == len(want)
        for i, expected in enumerate(want):
            plain = np.asarray(expected)
            np.testing.assert_array_equal(got[f"o{i}"], plain, err_msg=f"o{i}", strict=True)
        for state, expected in new.items():
            np.testing.assert_array_equal(compiled.state(state), expected, err_msg=state)
        old |= {state: np.asarray(value) for state, value in new.items()}


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
