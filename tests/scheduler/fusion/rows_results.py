"""Several outputs, what is assigned, and tensors that are partly realized or pinned."""

from __future__ import annotations

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import Row, below, positive


def largest_and_where(x: Tensor) -> list[Tensor]:
    return [x.max(-1), x.argmax(-1)]


def rows_normalised(x: Tensor) -> list[Tensor]:
    mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    return [mean, deviation, (x - mean) / deviation]


def two_deviations(x: Tensor, y: Tensor) -> list[Tensor]:
    shifted = [v - v.max(-1, keepdim=True) for v in (x, y)]
    mu = shifted[0].mean(-1, keepdim=True) + shifted[1].mean(-1, keepdim=True)
    return [((v - mu).square().sum(-1) / v.shape[-1]).sqrt() for v in (x, y)]


def powers(a: Tensor) -> list[Tensor]:
    first = a.sum().exp2()
    second = a.sum() + first
    b = a + first + second
    third = b.sum().exp2()
    return [first, second, third, b.sum() + third]


def middle_reduce(a: Tensor) -> list[Tensor]:
    r = a.sum()
    power = r.exp2()
    top = (a - power).max()
    return [r, power, top, r + top]


def middle_expand(a: Tensor, b: Tensor) -> list[Tensor]:
    r = a.sum()
    e = b + r.exp2()
    return [r, r.exp2(), r + e[0, 0, 0], e]


def middle_shrink(a: Tensor, c: Tensor) -> list[Tensor]:
    r = a.sum(1, keepdim=True)
    return [r, r.exp2(), r.exp2()[0] + c]


def four_scalars(a: Tensor, b: Tensor) -> list[Tensor]:
    c, d = a.sum() + 2.0, a.sum() * 2.0
    e = c * d
    return [c, d, e, b.sum() - e]


def transposed_feed(a: Tensor, b: Tensor) -> list[Tensor]:
    r = a.sum(2) + b
    d = r.T * 4.0
    return [d, r * d]


def momentum(p: Tensor, kept: Tensor, g: Tensor) -> list[Tensor]:
    kept = kept.assign(kept * 0.9 + g)
    return [kept, p.assign(p - kept * 0.1)]


def running_statistics(x: Tensor, mean: Tensor, variance: Tensor) -> list[Tensor]:
    """Normalise (8, 12) per column and update what is kept of the statistics."""
    m, v = x.mean(0), x.var(0, correction=0)
    y = (x - m) * (v + 1e-5).rsqrt()
    return [y, mean.assign(mean * 0.9 + m * 0.1), variance.assign(variance * 0.9 + v * 0.1)]


def replaced_row(cache: Tensor, row: Tensor) -> Tensor:
    cache[3:4] = row * 2.0
    return cache


def chained(a: Tensor, b: Tensor) -> Tensor:
    return a.assign(a + 1.0).assign(a * b).assign(a - 2.0)


def swapped(a: Tensor, b: Tensor) -> list[Tensor]:
    old = a + 0.0
    return [a.assign(b * 2.0), b.assign(old * 3.0)]


def sum_beside_the_realized(a: Tensor, b: Tensor) -> list[Tensor]:
    return [(a + b).realize(), a + b]


def normalised_state(p: Tensor, x: Tensor) -> list[Tensor]:
    p = p.assign(x / 2)
    p.assign(p / p.sum(1))
    return [p, p[0].pad(((1, 0),)).repeat(2)]


def pinned_and_child(a: Tensor, b: Tensor) -> Tensor:
    c = a + b
    child = c.kernelize() + 2
    return c.kernelize() + child.kernelize()


ROWS = [
    # Several outputs: what they share is computed and loaded once.
    Row(
        "epilogues-and-their-product",
        76,
        "4x4",
        lambda a: [a.sum() + 2.0, a.sum() + 4.0, (a.sum() + 2.0) * (a.sum() + 4.0)],
    ),
    Row("chained-scalars", 80, [positive(4, 4, scale=0.05)], powers, tolerance=1e-3),
    Row("scalar-feeds-a-reduction", 80, "4x4", middle_reduce),
    Row("scalar-feeds-a-cube", 588, "4x4 4x4x4", middle_expand),
    Row("epilogues-of-one-sum", 76, "4x4 4", lambda a, b: [a.sum() + b[0], a.sum() + 2.0]),
    Row("row-sums-and-one-row", (2, 132, 0), "4x4 4", middle_shrink),
    Row(
        "rows-plus-their-sum-and-its-sum",
        (2, 800, 0),
        "8x8",
        lambda a: [a + a.sum(-1, keepdim=True), (a + a.sum(-1, keepdim=True)).sum(-1)],
    ),
    Row("two-deviations", 1056, "4x32 4x32", two_deviations),
    Row(
        "half-sum-scaled-twice",
        264,
        "8x8",
        lambda x: [x.sum().half().float() * 2.0, x.sum().half().float() * 3.0],
        lambda x: [x.sum().astype(np.float16) * 2.0, x.sum().astype(np.float16) * 3.0],
        tolerance=2e-3,
    ),
    Row(
        "sums-of-a-sum",
        (2, 416, 256),
        "4x4x4",
        lambda a: [(a.sum(0) + 6.0).sum(0) * 4.0, (a.sum(0) + 6.0).sum(1) * 2.0],
    ),
    Row("transposed-feed", (2, 576, 256), "4x4x4 4x4", transposed_feed),
    Row("shared-sum", 136, "4x4 4x4", lambda a, b: [a.sum() + 2.0, (a.sum() - b.sum()) * 4.0]),
    Row("four-scalars", 144, "4x4 4x4", four_scalars),
    Row(
        "epilogues-of-a-sum-with-steps",
        136,
        "16",
        lambda x: [(x + Tensor.arange(16)).sum() + 2.0, (x + Tensor.arange(16)).sum() + 3.0],
    ),
    Row("sums-of-both-axes", 1696, "16x24", lambda a: [a.sum(0).relu() + 1.0, a.sum(1).exp()]),
    Row("sums-of-three-axes", 2672, "6x8x10", lambda a: [a.sum(0), a.sum(1), a.sum(2)]),
    Row("largest-and-where", 1664, "16x24", largest_and_where),
    Row("moments", 1664, "16x24", lambda x: [x.mean(1), x.std(1)]),
    Row("moments-and-values", 3200, "16x24", rows_normalised),
    Row("both-softmaxes", 4608, "16x24", lambda x: [x.softmax(), x.log_softmax()]),
    Row(
        "four-of-one-row",
        1792,
        "16x24",
        lambda x: [x.sum(1), x.max(1), x.min(1), x.square().sum(1)],
    ),
    Row(
        "sum-with-epilogues",
        1728,
        "16x24",
        lambda x: [x.sum(1), x.sum(1).exp(), x.sum(1) * 2.0 + 1.0],
    ),
    Row(
        "divided-and-scaled",
        4608,
        "+16x24",
        lambda x: [x / x.sum(1, keepdim=True), x * x.sum(1, keepdim=True)],
    ),
    Row("value-and-sum", 4672, "16x24 16x24", lambda a, b: [a * b, (a * b).sum(1)]),
    Row("unrelated-sums", 1888, "16x24 8x8", lambda a, b: [a.sum(1), b.sum(0)]),
    Row(
        "sum-under-two-views",
        (2, 1216, 256),
        "16x16",
        lambda a: [a.sum(0)[:8], a.sum(0)[8:] * 2.0],
        open=(1, "two outputs hold separate parts of one sum: it is stored, then cut"),
    ),
    Row(
        "loss-and-count",
        360,
        [(8, 10), below(10, 8)],
        lambda x, i: [x.square().sum(), i.eq(3).sum()],
    ),
    Row("sum-and-map", 840, "10x10", lambda a: [a.sum(1), a.cos()]),
    Row(
        "scalar-sum-and-exp",
        56,
        "4 4",
        lambda a, b: [a.sum(keepdim=True), a.sum().exp2(), a.sum().exp2() + b],
    ),
    Row("argmin-and-argmax-of-all", 520, "4x32", lambda x: [x.argmin(), x.argmax()]),
    Row(
        "sum-with-two-epilogues",
        584,
        "12x12",
        lambda a: [a.sum() + 2.0, a.sum() * 4.0],
        tolerance=1e-4,
    ),
    Row("sum-and-range", 672, "12x12", lambda a: [a.sum(1), a.max(1) - a.min(1)]),
    Row("value-and-its-exponential", 1728, "12x12", lambda a: [a * 2.0, (a * 2.0).exp()]),
    # Writes: what is assigned is stored in place if no other element of it is read.
    Row("add-in-place", 768, "8x12", lambda a: a.assign(a + 1.0), assigned=[0]),
    Row(
        "assign-two",
        1536,
        "8x12 8x12",
        lambda a, b: [a.assign(a + 1.0), b.assign(b * 2.0)],
        assigned=[0, 1],
    ),
    Row(
        "assign-from-each-other",
        1536,
        "8x12 8x12",
        lambda a, b: [a.assign(a + b), b.assign(b.exp())],
        assigned=[0, 1],
    ),
    Row(
        "assign-and-read",
        (2, 1184, 0),
        "8x12",
        lambda a: [a.assign(a * 2.0), a.sum(1)],
        assigned=[0],
        open=(1, "elements of an assigned value are not computed again"),
    ),
    Row("assign-matrix-product", 768, "8x8 8x8", lambda a, b: b.assign(b + a @ a), assigned=[1]),
    Row(
        "assign-normalised",
        (2, 1536, 512),
        "+8x12",
        lambda a: a.assign(a / a.sum(1, keepdim=True)),
        assigned=[0],
        owned=(1, 1536, 512),
    ),
    Row(
        "assign-reversed",
        (2, 256, 256),
        "16",
        lambda a: a.assign(a.flip(0)),
        assigned=[0],
        owned=(1, 256, 256),
    ),
    Row(
        "assign-shifted",
        (2, 1584, 512),
        "8x12 1x12",
        lambda a, x: a.assign(Tensor.cat([a[1:], x])),
        assigned=[0],
        owned=(1, 1584, 512),
    ),
    Row("assign-chained", 1152, "8x12 8x12", chained, assigned=[0], owned=768),
    Row("assign-swapped", 1536, "8x12 8x12", swapped, assigned=[0, 1]),
    Row("momentum", 1920, "8x12 8x12 8x12", momentum, assigned=[0, 1]),
    Row(
        "running-statistics",
        (2, 1536, 512),
        "8x12 12 +12",
        running_statistics,
        assigned=[1, 2],
        open=(1, "epilogues that are assigned leave the loop nest"),
    ),
    Row("replaced-row", 96, "8x12 1x12", replaced_row, assigned=[0]),
    Row(
        "half-precision-weights",
        1152,
        "8x12 8x12",
        lambda w, g: w.assign((w.cast(dt.float16) - g.half() * 0.5).float()),
        lambda w, g: w - g * 0.5,
        assigned=[0],
        tolerance=5e-3,
    ),
    # Tensors that are partly realized or pinned: only as users realize them, not as programs.
    Row("sum-beside-the-same-realized", 0, "4 4", sum_beside_the_realized, eager=True),
    Row("constant-times-one", 0, "", lambda: Tensor(3.5) * 1.0, eager=True),
    Row("constant-spread", 0, "", lambda: Tensor.full((2, 3), 4.0).T, eager=True),
    Row("view-turned-and-cut", 0, "4x4", lambda a: a.T.flip(0)[1:3], eager=True),
    Row("view-itself", 0, "4x6", lambda a: a, eager=True),
    Row("view-reshaped", 0, "4x6", lambda a: a.reshape(24), eager=True),
    Row("view-of-rows", 0, "4x6", lambda a: a[1:3], eager=True),
    Row("view-of-one-row", 0, "4x6", lambda a: a[1:3][1].reshape(2, 3), eager=True),
    Row("normalised-state", (2, 168, 0), "4x4 +4x4", normalised_state, eager=True),
    Row("pinned-then-plus", (2, 80, 0), "4 4", lambda a, b: (a + b).kernelize() + 2, eager=True),
    Row("pinned-and-its-child", (3, 128, 0), "4 4", pinned_and_child, eager=True),
    Row("moved-to-its-own-device", 0, "4", lambda a: a.to("auto"), eager=True),
    Row("variable", 0, "", lambda: Tensor.variable("n", 0, 9, 4), eager=True),
    Row("variable-plus", 8, "", lambda: Tensor.variable("n", 0, 9, 4) + 2, eager=True),
    Row("constants-of-two-shapes", 32, "4", lambda a: [a * 0 + 1, Tensor.ones(3) * 1], eager=True),
]
