"""Cheaper operations: what is rewritten, what is left alone, and that values stay."""

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from scheduler.ir import dtype as dt
from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.passes.strength_reduce import strength_reduce
from scheduler.tensor.tensor import Tensor
from tests.scheduler.passes.pass_check import Build, check_row, one, ops, row, rows
from tests.scheduler.support.programs import Array, program_of, values_of

HALF, TWO = math.sqrt(0.5), math.sqrt(2.0)
X = Tensor.input("x", (3, 4))


def power(exponent: float, left: int) -> ParameterSet:
    """POW as a graph may hold it: the front end writes known exponents otherwise."""

    def raw() -> Tensor:
        # Made in the test: what lives while others realize an equal tensor reads what they stored.
        return (X.abs() + 1.0).binary(Op.POW, Tensor.full((3, 4), exponent))

    return row(f"power {exponent}", raw, POW=left)


@rows(
    row("gelu", lambda: X * ((X / 1.4142135).erf() + 1.0) * 0.5, GELU=1, ERF=0),
    row("gelu by factors", lambda: X * 0.5 * (1.0 + (X * HALF).erf()), GELU=1, ERF=0),
    row("gelu, half first", lambda: X * (((X / TWO).erf() + 1.0) * 0.5), GELU=1, ERF=0),
    row("gelu, erf first", lambda: (1.0 + (X * 0.7071068).erf()) * (0.5 * X), GELU=1, ERF=0),
    row("gelu, half last", lambda: 0.5 * (X * (1.0 + (X / TWO).erf())), GELU=1, ERF=0),
    row("gelu by name", X.gelu, GELU=1, ERF=0),
    row("gelu of a product", (X * 3.0).gelu, GELU=1, ERF=0),
    row("gelu, divided by more", lambda: X * ((X / 1.5).erf() + 1.0) * 0.5, GELU=0),
    row("gelu, plus more", lambda: X * ((X / TWO).erf() + 2.0) * 0.5, GELU=0),
    row("gelu times another", lambda: (X + 1.0) * ((X / TWO).erf() + 1.0) * 0.5, GELU=0),
    row("gelu times less", lambda: X * ((X / TWO).erf() + 1.0) * 0.25, GELU=0),
    row("gelu of doubles", lambda: X.cast(dt.float64).gelu(), GELU=0),
    row("gelu of halves", lambda: X.half().gelu(), GELU=0),
    row("quotient", lambda: X / 3.0, DIV=0),
    row("quotient of doubles", lambda: X.cast(dt.float64) / 3.0, DIV=0),
    row("quotient of halves", lambda: X.half() / 3.0, DIV=1),
    row("quotient by so little that 1/c is infinite", lambda: X / 1e-39, DIV=1),
    row("quotient by what is not known", lambda: X / X.exp(), DIV=1),
    row("one over y", lambda: 1.0 / (X + 9.5), RECIP=1, DIV=0),
    row("factors", lambda: X * 3.0 * 0.7, MUL=1),
    row("factors and a quotient", lambda: 3.0 * (0.1 * (X / 3.0)), MUL=1),
    row("factors of no normal product", lambda: X * 1e-30 * 1e-30, MUL=2),
    row("factors of an infinite product", lambda: X * 1e30 * 1e30, MUL=2),
    *(power(e, 0) for e in (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 7.0, 8.0)),
    *(power(e, 1) for e in (-3.0, 0.3, 2.5, 9.0, math.inf)),
)
def test_what_becomes_cheaper(build: Build, counts: Mapping[str, int]) -> None:
    check_row(strength_reduce, build, counts)


def test_gelu_bears_the_names_of_all_it_replaces() -> None:
    tensor = Tensor.input("named", (7,)).gelu()
    origins = Origins()
    for i, node in enumerate(n for n in toposort([tensor.node]) if n.op in (Op.ERF, Op.MUL)):
        origins.name([node], (f"/n{i}",))
    new = strength_reduce([tensor.node])
    origins.follow(new)
    assert set(origins.of(new[tensor.node])) == {"/n0", "/n1", "/n2", "/n3"}


STEPS: list[Callable[[Tensor], Tensor]] = [
    lambda y: y.floor(),
    lambda y: (y + 0.5).trunc(),
    lambda y: y.reshape(-1).cast(dt.int32),
    lambda y: (y * 1.0).exp() > 1.0,
    lambda y: Tensor.cat([y, y]).contiguous().round(),
    lambda y: y.max(0, keepdim=True).floor(),
    lambda y: (-y.min(1, keepdim=True)).ceil(),
    lambda y: y.gather(Tensor.input("i", (2,), dt.int32), 1).maximum(0).trunc(),
    lambda y: y.reshape(1, 1, -1, 4).max_pool2d((1, 2)).clip(0, 9).cast(dt.int32),
    lambda y: (y > 1e9).where(0.0, y).pad(((1, 1), (0, 0))).abs() < 1.0,
    lambda y: y.half(),
]


@pytest.mark.parametrize("step", STEPS)
def test_what_decides_about_steps_keeps_its_last_place(step: Callable[[Tensor], Tensor]) -> None:
    assert Op.DIV in ops(one(strength_reduce, step(X / 49.0)))
    assert Op.DIV not in ops(one(strength_reduce, step((X / 49.0).sum(0, keepdim=True))))


def test_a_state_is_followed_to_what_the_next_run_reads() -> None:
    state = Tensor.state("s", (3, 4))
    seen, kept = (state * 1.0).floor().node, state.assign(X / 49.0).node
    assert Op.DIV in ops(strength_reduce([seen, kept])[kept])
    assert Op.DIV not in ops(strength_reduce([kept])[kept])


def test_whole_quotients_stay_whole_whatever_passes_them_on() -> None:
    """Each case has an input of its own: a quotient that two share is exact for both."""
    given: dict[str, Array] = {"i": np.array([3, 0], np.int32)}

    def fed(values: Array) -> Tensor:
        name = f"x{len(given)}"
        given[name] = values
        return Tensor.input(name, values.shape, dt.from_numpy(values.dtype))

    def eight() -> Tensor:
        return fed(np.arange(1, 9, dtype=np.float32).reshape(4, 2) * 41) / 41.0

    n = np.arange(1, 400, dtype=np.float32)
    made: list[tuple[Tensor, list[int]]] = [
        ((fed(n * 49) / 49.0).floor(), n.astype(int).tolist()),
        (eight().max(1).floor(), [2, 4, 6, 8]),
        ((-eight()).min(1).ceil(), [-2, -4, -6, -8]),
        (eight().gather(Tensor.input("i", (2,), dt.int32), 0).floor().max(1), [8, 2]),
        (eight().reshape(1, 1, 4, 2).max_pool2d((1, 2)).floor().reshape(4), [2, 4, 6, 8]),
    ]
    for kind, count in ((np.float32, 41), (np.float64, 49)):  # means of whole multiples
        multiples = np.repeat(np.arange(1, 9), count).reshape(8, count).astype(kind)
        images = fed(multiples).reshape(1, 8, 1, count).avg_pool2d((1, count)).reshape(8)
        made += [(t.floor(), list(range(1, 9))) for t in (fed(multiples).mean(1), images)]
    found = values_of(program_of(*(tensor for tensor, _ in made)), **given)
    assert [value.tolist() for value in found] == [want for _, want in made]
