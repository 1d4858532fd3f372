"""Programs in which loop nests that share a launch, or a state, could get in each other's way.

Squares, so that an axis could be taken for the other one; sizes that lanes do not divide; results
of several shapes and types in one loop nest; states read old and new, written whole and in part.
All values are small whole numbers: whatever the order of a sum, results are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler import CustomKernel, Tensor, custom_kernel
from scheduler.context import context_for
from scheduler.emit.schedule import Schedule
from scheduler.ir import dtype as dt
from scheduler.ir.index import leaves
from scheduler.pipeline import schedule
from tests.scheduler.support.programs import load

Array = NDArray[Any]
Env = dict[str, Array]

N = 20
F32 = np.float32


def ints(*shape: int, seed: int = 9) -> Array:
    return np.random.default_rng((seed, *shape)).integers(-3, 4, shape).astype(F32)


GIVEN: Env = {
    "x": ints(N, N),
    "y": ints(N, N, seed=1),
    "v": ints(N),
    "a": ints(33, 33),
    "b": ints(33, 33, seed=2),
}
GIVEN["w"] = ints(1)
GIVEN["i"] = np.array([3, 0, 2, 2, 1], np.int32)
X, Y, V, W, A, B, I = (GIVEN[n] for n in "xyvwabi")  # noqa: E741  # the names of the inputs
WEIGHT = ints(N, N, seed=3)


@cache
def given(name: str) -> Tensor:
    return Tensor.input(name, GIVEN[name].shape, dt.int32 if name == "i" else dt.float32)


@dataclass
class Program:
    """Outputs, state writes, and what they must be: (old states) -> (outputs, new states)."""

    outputs: list[Tensor]
    want: Callable[[Env], tuple[list[Array], Env]]
    writes: list[Tensor] = field(default_factory=list)

    def plan(self) -> Schedule:
        named = {f"o{i}": t.node for i, t in enumerate(self.outputs)}
        return schedule(named, [w.node for w in self.writes], context=context_for())


@cache
def states() -> tuple[Tensor, Tensor]:
    return Tensor.state("s", (N, N)), Tensor.state("t", (N, N))


def rows_and_columns() -> Program:
    """Loops that only run over rows, only over columns, and over both."""
    x, y, v = map(given, "xyv")
    outputs = [v * 2.0, x.sum(1), x + y, x.T * 2.0, (x * y).sum(0), y.max(1)]
    want = [V * 2, X.sum(1), X + Y, X.T * 2, (X * Y).sum(0), Y.max(1)]
    return Program(outputs, lambda _: (want, {}))


def shapes_and_types() -> Program:
    x, y, v = map(given, "xyv")
    outputs = [x.sum(), v + 1.0, x * 2.0, (x.sum() + v).sum(), (x > 0.0).sum(1), x > y]
    outputs += [x.abs().cast(dt.uint8), x.half(), x.cast(dt.int64)]
    want = [X.sum(), V + 1, X * 2, (X.sum() + V).sum(), (X > 0).sum(1).astype(np.int32), X > Y]
    want += [np.abs(X).astype(np.uint8), X.astype(np.float16), X.astype(np.int64)]
    return Program(outputs, lambda _: ([np.asarray(w) for w in want], {}))


def overlapping_blocks_of_bools() -> Program:
    a, b = given("a"), given("b")
    outputs = [a > b, (a > b).T, (a > 0.0).logical_not(), a.max(1) > b.max(0), (a > b).sum(1)]
    want = [A > B, (A > B).T, ~(A > 0), A.max(1) > B.max(0), (A > B).sum(1).astype(np.int32)]
    return Program(outputs, lambda _: (want, {}))


def rows_kept_in_an_array() -> Program:
    a = given("a")
    q = (a - a.max(1, keepdim=True)).square() + 1.0
    total = q.sum(1, keepdim=True)
    square = (A - A.max(1, keepdims=True)) ** 2 + 1
    sums = square.sum(1, keepdims=True)
    want = [square.sum(1), square, square - sums, (square - sums).max(1), (square * sums).T]
    outputs = [q.sum(1), q, q - total, (q - total).max(1), (q * total).T]
    return Program(outputs, lambda _: (want, {}))


def states_cross() -> Program:
    (s, t), x, y = states(), given("x"), given("y")
    first, second = s.assign(x - t.T), t.assign(s.T + y)

    def want(old: Env) -> tuple[list[Array], Env]:
        p, q = X - old["t"].T, old["s"].T + Y
        return [p + q.T, old["s"] * 2, old["t"].sum(0), p], {"s": p, "t": q}

    outputs = [first + second.T, s * 2.0, t.sum(0), first]
    return Program(outputs, want, [first, second])


def part_of_a_state(build: Callable[[Tensor, Tensor], list[Tensor]], theirs: Any) -> Program:
    """Rows 2 to 6 are written alone, or merged with the old ones where those are read."""
    s, x = states()[0], given("x")
    push = s[2:7].assign(x[0:5] * 2.0)

    def want(old: Env) -> tuple[list[Array], Env]:
        new = old["s"].copy()
        new[2:7] = X[:5] * 2
        return theirs(old["s"], new), {"s": new}

    return Program(build(s, push), want, [push])


def part_old_and_new() -> Program:
    y = given("y")
    return part_of_a_state(
        lambda s, p: [p, s, s.T + y, p[2:7] + 1.0, p[0:5] * 1.0],
        lambda old, new: [new, old, old.T + Y, new[2:7] + 1, new[0:5]],
    )


def part_new_beside_the_same_value() -> Program:
    x = given("x")
    return part_of_a_state(
        lambda _, p: [x[0:5] * 2.0, p[2:7] + 1.0, p[3:8] * 1.0],
        lambda _, new: [X[:5] * 2, new[2:7] + 1, new[3:8]],
    )


def part_beside_the_old_state_as_output() -> Program:
    return part_of_a_state(lambda s, p: [p[2:7] + 1.0, s], lambda old, new: [new[2:7] + 1, old])


def part_feeds_another_state() -> Program:
    (s, t), x = states(), given("x")
    push = s[2:7].assign((x[0:5] * 2.0).contiguous())
    other = t.assign((push[1:6].sum(0, keepdim=True) + t * 2.0).minimum(99.0).maximum(-99.0))

    def want(old: Env) -> tuple[list[Array], Env]:
        p = old["s"].copy()
        p[2:7] = X[:5] * 2
        q = np.clip(p[1:6].sum(0, keepdims=True) + old["t"] * 2, -99, 99)
        return [p[2:7], q.T, old["t"][:3]], {"s": p, "t": q}

    return Program([push[2:7], other.T, t[:3]], want, [push, other])


def part_shifts_itself() -> Program:
    s, x = states()[0], given("x")
    push = s[2:7].assign(s[1:6] + x[0:5])

    def want(old: Env) -> tuple[list[Array], Env]:
        new = old["s"].copy()
        new[2:7] = old["s"][1:6] + X[:5]
        return [new], {"s": new}

    return Program([push], want, [push])


def part_is_summed_with_the_rest() -> Program:
    """What is not written keeps its old value, also where a sum runs over it."""
    return part_of_a_state(
        lambda _, p: [p.sum(0), p.sum(1), p.flip(0).max(0)],
        lambda _, new: [new.sum(0), new.sum(1), new.max(0)],
    )


def head_of_a_state_is_summed_with_the_rest() -> Program:
    s, x = states()[0], given("x")
    push = s[0:10].assign(x[0:10] * 2.0)
    after = np.concatenate([X[:10] * 2, 0 * X[10:]])
    return Program([push.sum(0)], lambda _: ([after.sum(0)], {"s": after}), [push])


def state_of_rows_is_read_by_every_column() -> Program:
    """The row is stored outside the loop over columns, which still reads the old one."""
    x, y, v, w = given("x"), given("y"), given("v").reshape(N, 1), given("w")
    state = Tensor.state("r", (N, 1))
    push = state.assign(v * 2.0)
    column = V.reshape(N, 1)

    def want(old: Env) -> tuple[list[Array], Env]:
        return [Y * column + W, X + old["r"] + W], {"r": column * 2}

    return Program([y * v + w, x + state + w], want, [push])


def one_value_everywhere() -> Program:
    """An output three times, turned round, and the new value of two states."""
    (s, t), x, y = states(), given("x"), given("y")
    q = x @ y
    first, second = s.assign(q), t.assign(q)
    z = X @ Y
    return Program(
        [q, q, q.T, s, first, second + t],
        lambda old: ([z, z, z.T, old["s"], z, z + old["t"]], {"s": z, "t": z}),
        [first, second],
    )


def states_exchange() -> Program:
    s, t = states()
    first, second = s.assign(t + 1.0), t.assign(s)

    def want(old: Env) -> tuple[list[Array], Env]:
        return [old["t"] + 1 - old["s"]], {"s": old["t"] + 1, "t": old["s"]}

    return Program([first - second], want, [first, second])


def join_whose_parts_are_read() -> Program:
    x, y = given("x"), given("y")
    parts = [x @ y, x.sum(1, keepdim=True), (y @ x)[:, :3], x]
    theirs = [X @ Y, X.sum(1, keepdims=True), (Y @ X)[:, :3], X]
    outputs = [Tensor.cat(parts, 1), parts[0] * 2.0, parts[1] + x, parts[2].sum(0)]
    want = [np.concatenate(theirs, 1), theirs[0] * 2, theirs[1] + X, theirs[2].sum(0)]
    return Program(outputs, lambda _: (want, {}))


def join_becomes_a_state() -> Program:
    s, x, y = states()[0], given("x"), given("y")
    wide = Tensor.state("j", (N, 2 * N)).assign(Tensor.cat([x @ y, s], 1))
    push = s.assign(x @ y)

    def want(old: Env) -> tuple[list[Array], Env]:
        new = np.concatenate([X @ Y, old["s"]], 1)
        return [new.sum(1)], {"j": new, "s": X @ Y}

    return Program([wide.sum(1)], want, [wide, push])


TWO = CustomKernel(
    "two",
    "const int i = get_global_id(0); out0[i] = in0[i] * 2.0f; out1[i] = in0[i] + 1.0f;",
    [((N, N), dt.float32), ((N, N), dt.float32)],
    N * N,
)


def custom_result_nobody_reads() -> Program:
    value = given("x") + given("y")
    _, second = custom_kernel(TWO, value)
    want = [X + Y + 1, X + Y + 2, (X + Y).T]
    return Program([second, second + 1.0, value.T], lambda _: (want, {}))


def custom_reads_an_old_state() -> Program:
    s, x = states()[0], given("x")
    double, more = custom_kernel(TWO, s)
    push = s.assign((double + x).minimum(99.0).maximum(-99.0))

    def want(old: Env) -> tuple[list[Array], Env]:
        new = np.clip(old["s"] * 2 + X, -99, 99)
        return [old["s"].T + 1, new.sum(0)], {"s": new}

    return Program([more.T, push.sum(0)], want, [push])


def custom_reads_a_new_state() -> Program:
    (s, t), x = states(), given("x")
    push = s.assign(x)
    double, more = custom_kernel(TWO, push)
    other = t.assign(more + s)

    def want(old: Env) -> tuple[list[Array], Env]:
        new = X + 1 + old["s"]
        return [X.T * 2, old["s"], new], {"s": X, "t": new}

    return Program([double.T, s * 1.0, other], want, [push, other])


def custom_reads_a_state_written_in_part() -> Program:
    def build(_: Tensor, push: Tensor) -> list[Tensor]:
        return [*custom_kernel(TWO, push)]

    return part_of_a_state(build, lambda _, new: [new * 2, new + 1])


PROGRAMS = [
    rows_and_columns,
    shapes_and_types,
    overlapping_blocks_of_bools,
    rows_kept_in_an_array,
    states_cross,
    part_old_and_new,
    part_new_beside_the_same_value,
    part_beside_the_old_state_as_output,
    part_feeds_another_state,
    part_shifts_itself,
    part_is_summed_with_the_rest,
    one_value_everywhere,
    states_exchange,
    join_whose_parts_are_read,
    join_becomes_a_state,
    custom_result_nobody_reads,
    custom_reads_an_old_state,
    custom_reads_a_new_state,
    custom_reads_a_state_written_in_part,
]


def check(program: Program) -> None:
    """Run several times where there is state; every bit must be what numpy says."""
    outputs = {f"o{i}": t for i, t in enumerate(program.outputs)}
    written = [w.node.src[0] for w in program.writes]
    old = {n.arg.name: np.zeros(n.shape, F32) for n in written}
    with load(outputs, program.writes) as compiled:
        feed = {spec.name: GIVEN[spec.name] for spec in compiled.inputs}
        for _ in range(4 if program.writes else 1):
            want, new = program.want(old)
            got = compiled.run(feed)
            for name, expected in zip(outputs, want, strict=True):
                np.testing.assert_array_equal(got[name], expected, err_msg=name, strict=True)
            for name, expected in new.items():
                np.testing.assert_array_equal(compiled.state(name), expected, err_msg=name)
            old = new


@pytest.mark.opencl
@pytest.mark.parametrize("build", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("limit", ["", "5"])
def test_every_launch_leaves_what_numpy_says(
    build: Callable[[], Program], limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAX_KERNEL_BUFFERS", limit)
    check(build())


@pytest.mark.opencl
def test_what_a_write_leaves_alone_is_summed_as_it_was() -> None:
    check(head_of_a_state_is_summed_with_the_rest())


@pytest.mark.opencl
def test_a_row_of_a_state_is_read_before_it_is_stored() -> None:
    check(state_of_rows_is_read_by_every_column())


# --- indices known at run time, of values that are not loaded ------------------------------------

CHOSEN: dict[str, tuple[Callable[[], Tensor], Array]] = {
    "steps": (lambda: Tensor.arange(5), np.arange(5, dtype=np.int32)),
    "padded": (lambda: Tensor.full((3,), 2.0).pad([(1, 1)], 7.0), np.array([7, 2, 2, 2, 7], F32)),
}


@pytest.mark.opencl
@pytest.mark.parametrize("chosen", CHOSEN.values(), ids=CHOSEN)
@pytest.mark.parametrize("form", ["alone", "summed", "two results"])
def test_rows_of_a_computed_table_are_chosen_by_an_input(
    chosen: tuple[Callable[[], Tensor], Array], form: str
) -> None:
    value, want = chosen[0]().gather(given("i"), 0), chosen[1][I]
    outputs = {"alone": [value], "summed": [value.sum()], "two results": [value + 1, value * 2]}
    theirs = {"alone": [want], "summed": [want.sum()], "two results": [want + 1, want * 2]}
    check(Program(outputs[form], lambda _: ([np.asarray(w, want.dtype) for w in theirs[form]], {})))


# --- what a launch takes -------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [4, 5, 6])
def test_a_weight_read_in_several_orders_is_several_buffers(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAX_KERNEL_BUFFERS", str(limit))
    w, x = Tensor.weight(WEIGHT), given("x")
    program = Program([w + x, w.T * x, w.flip(0) - x], lambda _: ([], {}))
    arguments = [len(k.storage) + len(k.arguments) for k in program.plan().lowered]
    assert max(arguments) <= limit


def test_loops_that_leave_out_different_ranges_are_not_one_nest() -> None:
    x, v = Tensor.input("x", (256, 256)), Tensor.input("v", (256,))
    program = Program([x * 2.0 + v, (x * v).max(1), v * 3.0], lambda _: ([], {}))
    for kernel in program.plan().launches:
        for body in kernel.bodies:
            named = {frozenset(a for ix in s.index for a in leaves(ix)) for s in body.stores}
            shorter = [n for n in named if len(n) < len(body.ranges)]
            assert len(shorter) <= 1
