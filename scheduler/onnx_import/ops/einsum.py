"""Translator of Einsum: products of any number of tensors by an equation, two at a time.

A pair of operands becomes what MatMul makes of (batch, M, K) and (batch, K, N), with one axis for
each label instead of three: a product of broadcast axes and one sum over what is contracted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

from runtime.quantities import count_text
from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.tensor.tensor import Tensor

# A label is a letter; the axes of an ellipsis are "0", "1", ..., the last axis first.
_ELLIPSIS = "..."


@dataclass(frozen=True, slots=True)
class Term:
    """A tensor with a label for each axis, none twice."""

    x: Tensor
    labels: tuple[str, ...]

    def sizes(self) -> dict[str, int]:
        """Return the size of each label."""
        return dict(zip(self.labels, self.x.shape, strict=True))


def einsum(ctx: NodeContext) -> Value:
    """Translate Einsum, with or without "->", ellipses and repeated labels (diagonals)."""
    operands = [ctx.tensor(i) for i in range(ctx.count)]
    equation = ctx.text("equation", "").replace(" ", "")
    names, output = _parsed(equation, [x.ndim for x in operands])
    terms = [Term(x, tuple(labels)) for x, labels in zip(operands, names, strict=True)]
    full = _full_sizes(terms)
    missing = [label for label in output if label not in full]
    if missing or len(set(output)) != len(output):
        raise ModelError(f"equation {equation!r}: the result's labels must be among the operands'")
    terms = [_without_ones(_diagonal(term, full), full) for term in terms]
    while len(terms) > 1:
        first, second = min(combinations(range(len(terms)), 2), key=lambda p: _cost(terms, p, full))
        rest = [t for i, t in enumerate(terms) if i not in (first, second)]
        needed = {*output, *(label for t in rest for label in t.labels)}
        terms = [_product(terms[first], terms[second], needed), *rest]
    result = _reduced(terms[0], set(output))
    present = [label for label in output if label in result.labels]
    moved = result.x.permute([result.labels.index(label) for label in present])
    shape = tuple(full[label] if label in present else 1 for label in output)
    wide = moved.reshape(shape).broadcast_to(tuple(full[label] for label in output))
    return wide.as_type(operands[0].dtype)


def _parsed(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Return the labels of each operand's axes, and those of the result."""
    left, arrow, right = equation.partition("->")
    words = left.split(",")
    if len(words) != len(ranks):
        raise ModelError(
            f"equation {equation!r} is for {count_text(len(words), 'operand')}, found {len(ranks)}"
        )
    terms = []
    for word, rank in zip(words, ranks, strict=True):
        letters = len(word.replace(_ELLIPSIS, ""))
        extra = rank - letters
        if extra < 0 or (extra > 0 and _ELLIPSIS not in word):
            raise ModelError(f"equation {equation!r}: {word!r} does not fit {rank} axes")
        terms.append(_labels(word, extra, equation))
    used = Counter(label for term in terms for label in term)
    broadcast = sorted((n for n in used if n.isdigit()), key=int, reverse=True)
    if arrow:
        return terms, _labels(right, len(broadcast), equation)
    once = sorted(n for n, count in used.items() if count == 1 and not n.isdigit())
    return terms, [*broadcast, *once]


def _labels(word: str, extra: int, equation: str) -> list[str]:
    before, dots, after = word.partition(_ELLIPSIS)
    letters = before + after
    if letters and not (letters.isascii() and letters.isalpha()):
        raise ModelError(f"equation {equation!r}: {word!r} is not made of letters")
    between = [str(i) for i in reversed(range(extra))] if dots else []
    return [*before, *between, *after]


def _full_sizes(terms: Sequence[Term]) -> dict[str, int]:
    """Return the size of each label; an axis of size 1 broadcasts."""
    sizes: dict[str, int] = {}
    for term in terms:
        for label, size in zip(term.labels, term.x.shape, strict=True):
            known = sizes.setdefault(label, size)
            if size not in (1, known) and known != 1:
                raise ModelError(f"label {label!r} has sizes {known} and {size}")
            sizes[label] = size if known == 1 else known
    return sizes


def _diagonal(term: Term, full: dict[str, int]) -> Term:
    """Keep of axes with one label the elements with equal indices: one axis."""
    for label, count in Counter(term.labels).items():
        if count == 1:
            continue
        same = [i for i, name in enumerate(term.labels) if name == label]
        rest = [i for i in range(term.x.ndim) if i not in same]
        size = full[label]
        x = term.x.broadcast_to(
            tuple(size if i in same else s for i, s in enumerate(term.x.shape))
        ).permute([*rest, *same])
        kept = x.shape[: len(rest)]
        step = sum(size**i for i in range(count))
        flat = x.reshape((*kept, size**count))
        x = flat[..., ::step]
        term = Term(x, (*(term.labels[i] for i in rest), label))
    return term


def _without_ones(term: Term, full: dict[str, int]) -> Term:
    """Drop axes of size 1 whose label is wider elsewhere: they broadcast."""
    kept = [i for i, n in enumerate(term.labels) if term.x.shape[i] == full[n]]
    return Term(
        term.x.reshape(tuple(term.x.shape[i] for i in kept)), tuple(term.labels[i] for i in kept)
    )


def _reduced(term: Term, needed: set[str]) -> Term:
    """Sum over labels that nobody needs."""
    axes = [i for i, label in enumerate(term.labels) if label not in needed]
    if not axes:
        return term
    return Term(
        term.x.sum(axes).as_type(term.x.dtype), tuple(n for n in term.labels if n in needed)
    )


def _cost(terms: Sequence[Term], pair: tuple[int, int], full: dict[str, int]) -> tuple[int, int]:
    """Return the number of products that a pair takes, and how much its result adds."""
    first, second = (terms[i] for i in pair)
    labels = {*first.labels, *second.labels}
    elsewhere = {n for i, t in enumerate(terms) if i not in pair for n in t.labels}
    result = prod(full[n] for n in labels if n in elsewhere or n not in first.labels)
    return prod(full[n] for n in labels), result


def _product(a: Term, b: Term, needed: set[str]) -> Term:
    """Multiply two terms and sum over what nobody needs afterwards."""
    a = _reduced(a, needed | {*b.labels})
    b = _reduced(b, needed | {*a.labels})
    batch = [n for n in a.labels if n in b.labels and n in needed]
    inner = [n for n in a.labels if n in b.labels and n not in needed]
    rows = [n for n in a.labels if n not in b.labels]
    columns = [n for n in b.labels if n not in a.labels]
    order = [*batch, *rows, *columns, *inner]
    product = _spread(a, order) * _spread(b, order)
    dtype = product.dtype
    axes = tuple(range(len(order) - len(inner), len(order)))
    total = product.sum(axes).as_type(dtype) if inner else product
    return Term(total, (*batch, *rows, *columns))


def _spread(term: Term, order: Sequence[str]) -> Tensor:
    """Return the tensor with the axes of `order`; those it does not have are of size 1."""
    sizes = term.sizes()
    present = [n for n in order if n in sizes]
    moved = term.x.permute([term.labels.index(n) for n in present])
    return moved.reshape(tuple(sizes.get(n, 1) for n in order))
