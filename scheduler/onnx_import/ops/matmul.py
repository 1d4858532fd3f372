"""Translators of MatMul, Gemm, Einsum and Det. Formulas: ONNX operator documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np

from runtime.texts import count_text
from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.ops.index import ramp
from scheduler.tensor.tensor import Tensor


def matmul(ctx: NodeContext) -> Value:
    """Translate MatMul, with numpy's rules for vectors and batches."""
    a, b = ctx.tensor(0), ctx.tensor(1)
    if a.ndim == 0 or b.ndim == 0:
        raise ModelError(f"expected at least one axis each, found shapes {a.shape} and {b.shape}")
    return a.matmul(b).cast(a.dtype)


def gemm(ctx: NodeContext) -> Tensor:
    """Translate Gemm: alpha A' B' + beta C with A' (M, K) and B' (K, N).

    C broadcasts to (M, N). For integer matrices, alpha and beta are truncated to integers.
    """
    a, b = ctx.tensor(0), ctx.tensor(1)
    if a.ndim != 2 or b.ndim != 2:
        raise ModelError(f"expected two matrices, found shapes {a.shape} and {b.shape}")
    if ctx.integer("transA", 0):
        a = a.transpose()
    if ctx.integer("transB", 0):
        b = b.transpose()
    product = _scaled(a.matmul(b).cast(a.dtype), ctx.number("alpha", 1.0))
    beta = ctx.number("beta", 1.0)
    if not ctx.has(2) or beta == 0.0:
        return product
    c = ctx.tensor(2)
    if np.broadcast_shapes(c.shape, product.shape) != product.shape:
        raise ModelError(f"C of shape {c.shape} does not broadcast to {product.shape}")
    return product + _scaled(c, beta)


def _scaled(x: Tensor, factor: float) -> Tensor:
    if factor == 1.0:
        return x
    return x * factor if x.dtype.is_float else (x * int(factor)).cast(x.dtype)


# --- Einsum: products of any number of tensors, two at a time ---------------------------------
# A pair of operands becomes a product with broadcasting and one sum, as MatMul does, but with one
# axis per label.

# A label is a letter. The axes of an ellipsis are labeled "0", "1", ..., starting at the last.
_ELLIPSIS = "..."


@dataclass(frozen=True, slots=True)
class Term:
    """A tensor with a label for each axis."""

    x: Tensor
    labels: tuple[str, ...]  # one per axis; distinct, except in operands with a diagonal

    def sizes(self) -> dict[str, int]:
        """Return the size of each label."""
        return dict(zip(self.labels, self.x.shape, strict=True))


def einsum(ctx: NodeContext) -> Value:
    """Translate Einsum, including equations without "->", ellipses and repeated labels."""
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
    """Return the labels of each operand's axes, and the labels of the result."""
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
    """Return a term with distinct labels: axes with the same label are replaced by the diagonal."""
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
        # Flattened, neighbors on the diagonal are 1 + size + size^2 + ... elements apart.
        step = sum(size**i for i in range(count))
        flat = x.reshape((*kept, size**count))
        x = flat[..., ::step]
        term = Term(x, (*(term.labels[i] for i in rest), label))
    return term


def _without_ones(term: Term, full: dict[str, int]) -> Term:
    """Return a term without the axes of size 1 that broadcast."""
    kept = [i for i, n in enumerate(term.labels) if term.x.shape[i] == full[n]]
    return Term(
        term.x.reshape(tuple(term.x.shape[i] for i in kept)), tuple(term.labels[i] for i in kept)
    )


def _reduced(term: Term, needed: set[str]) -> Term:
    """Return a term summed over the labels that are not needed."""
    axes = [i for i, label in enumerate(term.labels) if label not in needed]
    if not axes:
        return term
    return Term(
        term.x.sum(axes).as_type(term.x.dtype), tuple(n for n in term.labels if n in needed)
    )


def _cost(terms: Sequence[Term], pair: tuple[int, int], full: dict[str, int]) -> tuple[int, int]:
    """Return the cost of multiplying a pair of terms: number of products, size of the result."""
    first, second = (terms[i] for i in pair)
    labels = {*first.labels, *second.labels}
    elsewhere = {n for i, t in enumerate(terms) if i not in pair for n in t.labels}
    result = prod(full[n] for n in labels if n in elsewhere or n not in first.labels)
    return prod(full[n] for n in labels), result


def _product(a: Term, b: Term, needed: set[str]) -> Term:
    """Return the product of two terms, summed over the labels that are not needed afterwards."""
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
    """Return the term's tensor with its axes in `order`, and axes of size 1 for missing labels."""
    sizes = term.sizes()
    present = [n for n in order if n in sizes]
    moved = term.x.permute([term.labels.index(n) for n in present])
    return moved.reshape(tuple(sizes.get(n, 1) for n in order))


# --- Det: determinants of batches of small matrices -------------------------------------------
# Matrices up to 3 x 3 use the sum of signed products, larger ones elimination with pivoting (Golub,
# Van Loan, Matrix Computations, 3.4).

# The largest matrix at run time; each step of the elimination takes a few kernels.
MAX_SIZE = 16


def determinant(ctx: NodeContext) -> Value:
    """Translate Det: (..., n, n) -> (...), n up to 16 at run time."""
    x = ctx.tensor(0)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ModelError(f"expected square matrices, found shape {x.shape}")
    size = x.shape[-1]
    known = ctx.value(0)
    if size > MAX_SIZE and not isinstance(known, Tensor):
        return np.asarray(np.linalg.det(known.astype(np.float64)), known.dtype)
    if size > MAX_SIZE:
        raise ModelError(f"matrices of {size} x {size} are not supported, at most {MAX_SIZE}")
    if size <= 3:
        return _expanded(x, size)
    lead = x.shape[:-2]
    x = x.reshape((-1, size, size))
    total: Tensor | None = None
    for left in range(size, 3, -1):
        x, pivot = _eliminated(x, left)
        total = pivot if total is None else total * pivot
    last = _expanded(x, 3)
    return (last if total is None else total * last).reshape(lead)


def _expanded(x: Tensor, size: int) -> Tensor:
    """Return the determinant of (..., size, size), size up to 3."""
    if size == 0:
        return Tensor.ones(x.shape[:-2], dtype=x.dtype)

    def at(i: int, j: int) -> Tensor:
        return x[..., i, j]

    if size == 1:
        return at(0, 0)
    if size == 2:
        return at(0, 0) * at(1, 1) - at(0, 1) * at(1, 0)
    minors = [at(1, j) * at(2, k) - at(1, k) * at(2, j) for j, k in ((1, 2), (0, 2), (0, 1))]
    return at(0, 0) * minors[0] - at(0, 1) * minors[1] + at(0, 2) * minors[2]


def _eliminated(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the matrices (batch, size-1, size-1) after one elimination step, and their pivots.

    The pivot is the first element with the largest magnitude. Its row is exchanged with the first
    row, which changes the sign; then multiples of it are subtracted from all others. The
    determinant of x is that of the result times the signed pivot (batch,).
    """
    place = x[:, :, 0].abs().argmax(1, keepdim=True).contiguous()  # (batch, 1)
    chosen = ramp(size, 1, 2).eq(place).unsqueeze(2)
    row = chosen.where(x, 0).sum(1, keepdim=True)  # (batch, 1, size)
    below = chosen.where(x[:, :1], x)[:, 1:]
    pivot = row[:, :, :1]
    ratio = pivot.eq(0).where(0, below[:, :, :1] / pivot.eq(0).where(1, pivot))
    rest = (below[:, :, 1:] - ratio * row[:, :, 1:]).contiguous()
    signed = place.eq(0).where(pivot.reshape((-1, 1)), -pivot.reshape((-1, 1)))
    return rest, signed.reshape((-1,))
