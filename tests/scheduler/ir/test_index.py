"""Index algebra against enumeration of every value of every range."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix, Predicate
from scheduler.ir.node import const

Env = Mapping[Atom, int]
RANGES = tuple(ixs.new_range(n, name) for n, name in ((2, "a"), (3, "b"), (5, "c"), (6, "d")))


@dataclass(frozen=True)
class Meaning:
    """An expression and what it should be, said in Python's own integers."""

    ix: Ix
    of: Callable[[Env], int]

    def __repr__(self) -> str:
        return repr(self.ix)


def evaluate(ix: Ix, env: Env) -> int:
    """Return the value of an expression's normal form."""
    total = ix.const
    for atom, factor in ix.terms:
        if atom.inner is None:
            value = env[atom]
        else:
            inner = evaluate(atom.inner, env)
            value = inner // atom.by if atom.kind == "div" else inner % atom.by
        total += factor * value
    return total


def every_env() -> Iterator[dict[Atom, int]]:
    for values in product(*(range(r.size) for r in RANGES)):
        yield dict(zip(RANGES, values, strict=True))


ENVS = tuple(every_env())


def leaf(atom: Atom) -> Meaning:
    return Meaning(ixs.of(atom), lambda env: env[atom])


def combine(name: str, a: Meaning, b: Meaning, k: int, n: int) -> Meaning:
    """Apply one operation of the algebra, and the same to the meaning."""
    table: dict[str, Callable[[], Meaning]] = {
        "add": lambda: Meaning(ixs.add(a.ix, b.ix), lambda env: a.of(env) + b.of(env)),
        "scale": lambda: Meaning(ixs.mul(a.ix, k), lambda env: a.of(env) * k),
        "move": lambda: Meaning(ixs.add(a.ix, ixs.constant(k)), lambda env: a.of(env) + k),
        "div": lambda: Meaning(ixs.floordiv(a.ix, n), lambda env: a.of(env) // n),
        "mod": lambda: Meaning(ixs.mod(a.ix, n), lambda env: a.of(env) % n),
    }
    return table[name]()


@st.composite
def meanings(draw: st.DrawFn, steps: int = 6) -> Meaning:
    """Expressions of up to `steps` operations; they reach far below zero."""
    pool = [leaf(r) for r in RANGES]
    for _ in range(draw(st.integers(1, steps))):
        a, b = draw(st.sampled_from(pool[-3:])), draw(st.sampled_from(pool))
        name = draw(st.sampled_from(["add", "scale", "move", "div", "mod"]))
        pool.append(combine(name, a, b, draw(st.integers(-7, 7)), draw(st.integers(1, 9))))
    return pool[-1]


@settings(max_examples=300)
@given(meanings())
def test_every_value_agrees_and_lies_within_the_bounds(x: Meaning) -> None:
    for env in ENVS:
        value = evaluate(x.ix, env)
        assert value == x.of(env)
        assert x.ix.lo <= value <= x.ix.hi


factors = st.lists(st.integers(-9, 9), min_size=len(RANGES), max_size=len(RANGES))


@settings(max_examples=300)
@given(factors, st.integers(-20, 20), st.integers(1, 12))
def test_quotient_and_remainder_make_the_whole(terms: list[int], start: int, n: int) -> None:
    x = ixs.constant(start)
    for atom, factor in zip(RANGES, terms, strict=True):
        x = ixs.add(x, ixs.mul(ixs.of(atom), factor))
    assert ixs.add(ixs.mul(ixs.floordiv(x, n), n), ixs.mod(x, n)) is x


@settings(max_examples=150)
@given(meanings(), st.lists(meanings(3), min_size=len(RANGES), max_size=len(RANGES)))
def test_substitution_is_evaluation_at_other_values(x: Meaning, others: list[Meaning]) -> None:
    mapping = {r: ixs.mod(o.ix, r.size) for r, o in zip(RANGES, others, strict=True)}
    replaced = ixs.substitute(x.ix, mapping)
    for env in ENVS:
        inner = {r: o.of(env) % r.size for r, o in zip(RANGES, others, strict=True)}
        assert evaluate(replaced, env) == x.of(inner)


@given(st.permutations(RANGES))
def test_unflatten_undoes_flatten(order: list[Atom]) -> None:
    shape = tuple(r.size for r in order)
    index = tuple(ixs.of(r) for r in order)
    assert ixs.unflatten(ixs.flatten(index, shape), shape) == index


@settings(max_examples=50)
@given(st.permutations(RANGES), st.permutations([2, 2, 3, 3, 5]))
def test_unflatten_into_another_shape_is_numpy_s(order: list[Atom], shape: list[int]) -> None:
    offset = ixs.flatten([ixs.of(r) for r in order], [r.size for r in order])
    index = ixs.unflatten(offset, shape)
    for env in ENVS:
        at = np.unravel_index(evaluate(offset, env), shape)
        assert tuple(evaluate(i, env) for i in index) == tuple(int(a) for a in at)


def test_merging_axes_and_splitting_them_again_leaves_no_division() -> None:
    a, b, c, d = (ixs.of(r) for r in RANGES)
    offset = ixs.flatten([a, b, c, d], [2, 3, 5, 6])
    assert ixs.unflatten(offset, [6, 30]) == (ixs.add(ixs.mul(a, 3), b), ixs.add(ixs.mul(c, 6), d))


conditions = st.lists(
    st.tuples(meanings(4), st.integers(-12, 12), st.integers(0, 12)), min_size=1, max_size=3
)


def holds(predicate: Predicate, env: Env) -> bool:
    return all(low <= evaluate(ix, env) <= high for ix, low, high in predicate)


@settings(max_examples=200)
@given(conditions)
def test_predicates_hold_exactly_where_their_parts_do(
    parts: list[tuple[Meaning, int, int]],
) -> None:
    predicate: Predicate = ()
    for x, low, width in parts:
        predicate = ixs.conjoin(predicate, x.ix, low, low + width)
    for env in ENVS:
        expected = all(low <= x.of(env) <= low + width for x, low, width in parts)
        assert holds(predicate, env) is expected


@settings(max_examples=100)
@given(conditions, st.lists(meanings(2), min_size=len(RANGES), max_size=len(RANGES)))
def test_predicates_substitute(
    parts: list[tuple[Meaning, int, int]], others: list[Meaning]
) -> None:
    mapping = {r: ixs.mod(o.ix, r.size) for r, o in zip(RANGES, others, strict=True)}
    predicate: Predicate = ()
    for x, low, width in parts:
        predicate = ixs.conjoin(predicate, x.ix, low, low + width)
    replaced = ixs.substitute_predicate(predicate, mapping)
    for env in ENVS:
        inner = {r: o.of(env) % r.size for r, o in zip(RANGES, others, strict=True)}
        assert holds(replaced, env) is holds(predicate, inner)


@settings(max_examples=200)
@given(meanings(), conditions)
def test_where_tests_hold_an_index_without_their_divisions_is_equal(
    x: Meaning, parts: list[tuple[Meaning, int, int]]
) -> None:
    predicate: Predicate = ()
    for y, low, width in parts:
        predicate = ixs.conjoin(predicate, y.ix, low, low + width)
    shorter = ixs.where(x.ix, predicate)
    for env in ENVS:
        assert not holds(predicate, env) or evaluate(shorter, env) == x.of(env)


def test_a_test_takes_out_the_division_of_a_padded_axis() -> None:
    y = ixs.shift(ixs.of(ixs.new_range(10, "y")), -1)  # -1..8, padding around an axis of 8
    inside = ixs.conjoin((), y, 0, 7)
    assert ixs.where(ixs.mod(y, 8), inside) is y
    assert ixs.where(ixs.floordiv(ixs.shift(y, 16), 8), inside) is ixs.constant(2)
    assert ixs.where(ixs.mod(y, 4), inside) is ixs.mod(y, 4)
    assert ixs.where(ixs.mod(y, 8), ()) is ixs.mod(y, 8)


def test_what_bounds_prove_is_left_out() -> None:
    c = ixs.of(RANGES[2])  # 0..4
    assert ixs.conjoin((), c, 0, 4) == ()
    assert ixs.conjoin((), c, -3, 9) == ()
    assert ixs.conjoin((), c, 5, 9) == ixs.NEVER
    narrow = ixs.conjoin(ixs.conjoin((), c, 1, 4), c, 0, 2)
    assert narrow == ((c, 1, 2),)
    assert ixs.conjoin(narrow, c, 3, 4) == ixs.NEVER
    assert ixs.conjoin(ixs.NEVER, c, 0, 4) == ixs.NEVER


def test_equal_expressions_are_one_object() -> None:
    b, c = ixs.of(RANGES[1]), ixs.of(RANGES[2])
    assert ixs.add(ixs.mul(b, 5), c) is ixs.add(c, ixs.mul(b, 5))
    assert ixs.add(ixs.mul(b, 5), ixs.mul(b, -5)) is ixs.ZERO


def test_coefficient_says_none_inside_a_division() -> None:
    b, d = RANGES[1], RANGES[3]
    moved = ixs.add(ixs.mul(ixs.of(b), 7), ixs.floordiv(ixs.of(d), 4))
    assert ixs.coefficient(moved, b) == 7
    assert ixs.coefficient(moved, d) is None
    assert ixs.coefficient(moved, RANGES[0]) == 0


def test_run_time_values_are_one_atom_per_value() -> None:
    node = const(3, dt.int32)
    first = ixs.value_atom(node, 0, 9)
    assert ixs.value_atom(node, 0, 9) is first
    assert ixs.value_atom(node, 0, 8) is not first
    doubled = ixs.mul(ixs.of(first), 2)
    assert (doubled.lo, doubled.hi) == (0, 18)
    assert list(ixs.leaves(doubled)) == [first]
