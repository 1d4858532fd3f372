"""Defines index expressions: bounded integers over loop ranges, in one normal form.

An `Ix` is `const + sum(coefficient * atom)`. Atoms are loop ranges, divisions and remainders that
did not simplify, and values loaded at run time (gather). Sums and products by constants merge two
short sorted tuples. Division and remainder by a constant first take out the terms that divide
evenly. Bounds prove most divisions and predicates away. All objects are interned, so equality is
identity.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count
from math import gcd

from scheduler.ir.node import Interned, Node

# The largest index: kernels compute indices with int.
LARGEST = 2**31 - 1

_serial = count()
# Weak references: expressions of a finished compilation are freed with its kernels.
_atoms: Interned[Atom] = Interned()
_exprs: Interned[Ix] = Interned()


class Atom:
    """An indivisible term of an index."""

    __slots__ = (
        "__weakref__",
        "by",
        "depth",
        "hi",
        "inner",
        "kind",
        "lo",
        "name",
        "node",
        "serial",
    )

    kind: str  # "range" (0..hi), "div" or "mod" (of `inner` by `by`), "value" (run-time int)
    name: str
    lo: int  # inclusive bounds (lo, hi)
    hi: int
    inner: Ix | None
    by: int
    node: Node | None
    depth: int  # nesting depth of div and mod; a node is stored if an index gets too deep
    serial: int

    def __repr__(self) -> str:
        if self.kind == "range":
            return self.name
        if self.kind == "value":
            return "value"
        return f"({self.inner!r}{'/' if self.kind == 'div' else '%'}{self.by})"

    @property
    def size(self) -> int:
        """Number of values of a range."""
        return self.hi + 1


def _new_atom(kind: str, lo: int, hi: int, depth: int) -> Atom:
    atom = Atom()
    atom.kind, atom.lo, atom.hi, atom.depth = kind, lo, hi, depth
    atom.name, atom.inner, atom.by, atom.node = "", None, 0, None
    atom.serial = next(_serial)
    return atom


def new_range(size: int, name: str) -> Atom:
    """Return a new loop range 0..size-1; ranges of equal name and size are different."""
    atom = _new_atom("range", 0, size - 1, 0)
    atom.name = name
    return atom


def value_atom(node: Node, lo: int, hi: int) -> Atom:
    """Return the atom of a run-time integer within [lo, hi]."""
    key = ("value", node, lo, hi)
    atom = _atoms.get(key)
    if atom is None:
        atom = _new_atom("value", lo, hi, 0)
        atom.node = node
        _atoms[key] = atom
    return atom


class Ix:
    """An interned index expression, made by the functions of this module."""

    __slots__ = ("__weakref__", "const", "depth", "hi", "lo", "terms")

    const: int  # normal form (const, terms): (atom, coefficient) pairs, oldest atom first
    terms: tuple[tuple[Atom, int], ...]
    lo: int  # inclusive bounds (lo, hi)
    hi: int
    depth: int  # greatest nesting depth of division and remainder

    def __repr__(self) -> str:
        parts = [f"{a!r}" if c == 1 else f"{c}*{a!r}" for a, c in self.terms]
        return "+".join(parts + ([str(self.const)] if self.const or not parts else []))

    @property
    def is_const(self) -> bool:
        """Whether the expression has no terms."""
        return not self.terms


def _make(const_: int, terms: tuple[tuple[Atom, int], ...]) -> Ix:
    key = (const_, terms)
    found = _exprs.get(key)
    if found is not None:
        return found
    ix = Ix()
    ix.const, ix.terms = const_, terms
    low = high = const_
    depth = 0
    for atom, c in terms:
        depth = max(depth, atom.depth)
        low += c * (atom.lo if c > 0 else atom.hi)
        high += c * (atom.hi if c > 0 else atom.lo)
    ix.lo, ix.hi, ix.depth = low, high, depth
    _exprs[key] = ix
    return ix


def constant(value: int) -> Ix:
    """Return a constant expression."""
    return _make(value, ())


ZERO = constant(0)


def of(atom: Atom) -> Ix:
    """Return the expression of one atom."""
    return constant(atom.lo) if atom.lo == atom.hi else _make(0, ((atom, 1),))


def add(a: Ix, b: Ix) -> Ix:
    """Return a + b."""
    if not b.terms:
        return _make(a.const + b.const, a.terms) if b.const else a
    if not a.terms:
        return _make(a.const + b.const, b.terms) if a.const else b
    # Terms of the same atom merge; quotient and remainder of one value may recombine.
    merged = dict(a.terms)
    for atom, c in b.terms:
        merged[atom] = merged.get(atom, 0) + c
    return _normal(a.const + b.const, merged)


def shift(a: Ix, k: int) -> Ix:
    """Return a + k."""
    return _make(a.const + k, a.terms) if k else a


def mul(a: Ix, k: int) -> Ix:
    """Return a * k."""
    if k == 0:
        return ZERO
    return a if k == 1 else _make(a.const * k, tuple((t, c * k) for t, c in a.terms))


def _normal(const_: int, merged: dict[Atom, int]) -> Ix:
    """Recombine x//n*n + x%n, drop zero terms and sort."""
    again = True
    while again:
        again = False
        for atom, c in merged.items():
            if atom.kind != "mod" or c == 0 or atom.inner is None:
                continue
            quotient = floordiv(atom.inner, atom.by)
            if len(quotient.terms) != 1 or quotient.const or quotient.terms[0][1] != 1:
                continue
            partner = quotient.terms[0][0]
            if merged.get(partner, 0) == c * atom.by:
                del merged[atom], merged[partner]
                const_ += atom.inner.const * c
                for t, k in atom.inner.terms:
                    merged[t] = merged.get(t, 0) + k * c
                again = True
                break
    return _sorted(const_, merged)


def _sorted(const_: int, merged: dict[Atom, int]) -> Ix:
    kept = [t for t in merged.items() if t[1]]
    kept.sort(key=_age)
    return _make(const_, tuple(kept))


def _age(term: tuple[Atom, int]) -> int:
    return term[0].serial


def _split(a: Ix, n: int) -> tuple[Ix, Ix]:
    """Return (q, r) with a = n*q + r; r has only the terms that n does not divide."""
    whole = tuple([(t, c // n) for t, c in a.terms if c % n == 0])
    rest = tuple([(t, c) for t, c in a.terms if c % n])
    return _make(a.const // n, whole), _make(a.const % n, rest)


def floordiv(a: Ix, n: int) -> Ix:
    """Return floor(a / n), for n >= 1."""
    if n == 1:
        return a
    quotient, rest = _split(a, n)
    if rest.lo // n == rest.hi // n:
        return shift(quotient, rest.lo // n)
    g = gcd(n, *(c for _, c in rest.terms))
    if g > 1:  # floor((g*x + c)/(g*m)) = floor((x + c//g)/m)
        inner = _make(rest.const // g, tuple((t, c // g) for t, c in rest.terms))
        return add(quotient, floordiv(inner, n // g))
    if len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if atom.kind == "div" and atom.inner is not None:  # floor(floor(x/a)/b) = floor(x/(a*b))
            return add(quotient, floordiv(atom.inner, atom.by * n))
    return add(quotient, of(_compound("div", rest, n)))


def mod(a: Ix, n: int) -> Ix:
    """Return a - n*floor(a / n), for n >= 1."""
    if n == 1:
        return ZERO
    rest = _split(a, n)[1]
    if rest.lo // n == rest.hi // n:
        return shift(rest, -n * (rest.lo // n))
    g = gcd(n, *(c for _, c in rest.terms))
    if g > 1:  # (g*x + c) mod (g*m) = g*((x + c//g) mod m) + c%g
        inner = _make(rest.const // g, tuple((t, c // g) for t, c in rest.terms))
        return add(mul(mod(inner, n // g), g), constant(rest.const % g))
    if len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if atom.kind == "mod" and atom.inner is not None and atom.by % n == 0:
            return mod(atom.inner, n)
    return of(_compound("mod", rest, n))


def _compound(kind: str, inner: Ix, n: int) -> Atom:
    key = (kind, inner, n)
    found = _atoms.get(key)
    if found is not None:
        return found
    lo, hi = (inner.lo // n, inner.hi // n) if kind == "div" else (0, n - 1)
    atom = _new_atom(kind, lo, hi, inner.depth + 1)
    atom.inner, atom.by = inner, n
    _atoms[key] = atom
    return atom


def substitute(a: Ix, mapping: Mapping[Atom, Ix]) -> Ix:
    """Return `a` with ranges replaced; recursion goes `a.depth` deep, which realize limits."""
    result = constant(a.const)
    for atom, c in a.terms:
        result = add(result, mul(_substitute_atom(atom, mapping), c))
    return result


def _substitute_atom(atom: Atom, mapping: Mapping[Atom, Ix]) -> Ix:
    found = mapping.get(atom)
    if found is not None:
        return found
    if atom.inner is None:
        return of(atom)
    inner = substitute(atom.inner, mapping)
    return floordiv(inner, atom.by) if atom.kind == "div" else mod(inner, atom.by)


def leaves(a: Ix) -> Iterator[Atom]:
    """Yield the ranges and run-time values in an expression, possibly repeated."""
    stack = [a]
    while stack:
        for atom, _ in stack.pop().terms:
            if atom.inner is None:
                yield atom
            else:
                stack.append(atom.inner)


def coefficient(a: Ix, atom: Atom) -> int | None:
    """Return the factor of a range: 0 if absent, None if inside a division or remainder."""
    result = 0
    for t, c in a.terms:
        if t is atom:
            result = c
        elif t.inner is not None and any(leaf is atom for leaf in leaves(t.inner)):
            return None
    return result


def only(a: Ix, atoms: Collection[Atom]) -> Ix:
    """Return the terms of the given atoms, without the constant."""
    return _make(0, tuple(t for t in a.terms if t[0] in atoms))


def as_atom(a: Ix) -> Atom | None:
    """Return the loop range that an index consists of; None for any other index."""
    if a.const == 0 and len(a.terms) == 1 and a.terms[0][1] == 1:
        atom = a.terms[0][0]
        return atom if atom.kind == "range" else None
    return None


def flatten(index: Sequence[Ix], shape: Sequence[int]) -> Ix:
    """Return the row-major offset of an index into a shape."""
    const_, stride = 0, 1
    merged: dict[Atom, int] = {}
    for ix, size in zip(reversed(index), reversed(shape), strict=True):
        const_ += ix.const * stride
        for atom, c in ix.terms:
            if atom.kind == "mod":  # it may recombine with its quotient
                return _flatten_by_axis(index, shape)
            merged[atom] = merged.get(atom, 0) + c * stride
        stride *= size
    return _sorted(const_, merged)


def _flatten_by_axis(index: Sequence[Ix], shape: Sequence[int]) -> Ix:
    offset, stride = ZERO, 1
    for ix, size in zip(reversed(index), reversed(shape), strict=True):
        offset = add(offset, mul(ix, stride))
        stride *= size
    return offset


def unflatten(offset: Ix, shape: Sequence[int]) -> tuple[Ix, ...]:
    """Return the index into a shape at a row-major offset."""
    result: list[Ix] = []
    rest = offset
    for size in reversed(shape):
        result.append(mod(rest, size) if size > 1 else ZERO)
        rest = floordiv(rest, size) if size > 1 else rest
    return tuple(reversed(result))


# A conjunction of conditions low <= expression <= high; () is always true.
Predicate = tuple[tuple[Ix, int, int], ...]
NEVER: Predicate = ((ZERO, 1, 0),)


def conjoin(predicate: Predicate, ix: Ix, low: int, high: int) -> Predicate:
    """Return the predicate with the added condition low <= ix <= high, unless bounds prove it."""
    if predicate == NEVER or ix.hi < low or ix.lo > high:
        return NEVER
    if ix.lo >= low and ix.hi <= high:
        return predicate
    bounds = {i: (lo, hi) for i, lo, hi in predicate}
    old = bounds.get(ix, (low, high))
    new = (max(old[0], low), min(old[1], high))
    if new[0] > new[1]:
        return NEVER
    bounds[ix] = new
    return tuple((i, lo, hi) for i, (lo, hi) in bounds.items())


def where(a: Ix, predicate: Predicate) -> Ix:
    """Return an expression that is equal wherever a predicate holds, with fewer divisions.

    (y + 7) % 8 where 0 <= y - 1 <= 7     ->     y - 1
    """
    result = constant(a.const)
    for atom, c in a.terms:
        result = add(result, mul(_where_atom(atom, predicate), c))
    return result


def _where_atom(atom: Atom, predicate: Predicate) -> Ix:
    if atom.inner is None:
        return of(atom)
    inner, n = where(atom.inner, predicate), atom.by
    for ix, least, most in predicate:
        apart = add(inner, mul(ix, -1))
        low, high = max(least, ix.lo) + apart.const, min(most, ix.hi) + apart.const
        if apart.is_const and low // n == high // n:
            whole = low // n
            return constant(whole) if atom.kind == "div" else shift(inner, -n * whole)
    return floordiv(inner, n) if atom.kind == "div" else mod(inner, n)


def substitute_predicate(predicate: Predicate, mapping: Mapping[Atom, Ix]) -> Predicate:
    """Return the predicate with ranges replaced, simplified again."""
    result: Predicate = ()
    for ix, low, high in predicate:
        result = conjoin(result, substitute(ix, mapping), low, high)
    return result
