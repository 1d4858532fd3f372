"""Several outputs, what is assigned, and tensors that are partly realized or pinned."""

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import positive, row


def rows_normalised(x: Tensor) -> list[Tensor]:
    mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    return [mean, deviation, (x - mean) / deviation]


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
    row("chained-scalars", 80, [positive(4, 4, scale=0.05)], tolerance=1e-3)(powers),
    row("scalar-feeds-a-reduction", 80, "4x4")(middle_reduce),
    row("scalar-feeds-a-cube", 588, "4x4 4x4x4")(middle_expand),
    row("row-sums-and-one-row", (2, 132, 0), "4x4 4")(middle_shrink),
    row("rows-plus-their-sum-and-its-sum", (2, 800, 0), "8x8")(
        lambda a: [a + a.sum(-1, keepdim=True), (a + a.sum(-1, keepdim=True)).sum(-1)]
    ),
    row("half-sum-scaled-twice", 264, "8x8", tolerance=2e-3)(
        lambda x: [x.sum().half().float() * 2.0, x.sum().half().float() * 3.0],
        lambda x: [x.sum().astype(np.float16) * 2.0, x.sum().astype(np.float16) * 3.0],
    ),
    row("sums-of-a-sum", (2, 416, 256), "4x4x4", flops=120, stored=[("float32", (4, 4))])(
        lambda a: [(a.sum(0) + 6.0).sum(0) * 4.0, (a.sum(0) + 6.0).sum(1) * 2.0]
    ),
    row("transposed-feed", (2, 576, 256), "4x4x4 4x4")(transposed_feed),
    row("epilogues-of-a-sum-with-steps", 136, "16")(
        lambda x: [(x + Tensor.arange(16)).sum() + 2.0, (x + Tensor.arange(16)).sum() + 3.0]
    ),
    row("sums-of-both-axes", 1696, "16x24")(lambda a: [a.sum(0).relu() + 1.0, a.sum(1).exp()]),
    row("sums-of-three-axes", 2672, "6x8x10")(lambda a: [a.sum(0), a.sum(1), a.sum(2)]),
    row("largest-and-where", 1664, "16x24")(lambda x: [x.max(-1), x.argmax(-1)]),
    row("moments", 1664, "16x24")(lambda x: [x.mean(1), x.std(1)]),
    row("moments-and-values", 3200, "16x24")(rows_normalised),
    row("both-softmaxes", 4608, "16x24")(lambda x: [x.softmax(), x.log_softmax()]),
    *(
        row(f"value-sums-and-maxima-{n}", moved, f"32x{n} 32x{n}")(
            lambda a, b: [a * b, (a * b).sum(1), (a * b + 1.0).max(1)]
        )
        for n, moved in ((4, 1792), (24, 9472), (40, 15616))
    ),
    row("unrelated-sums", 1888, "16x24 8x8")(lambda a, b: [a.sum(1), b.sum(0)]),
    row(
        "sum-under-two-views",
        (2, 1216, 256),
        "16x16",
        # Open: two outputs hold separate parts of one sum: it is stored, then cut.
    )(lambda a: [a.sum(0)[:8], a.sum(0)[8:] * 2.0]),
    row("sum-and-map", 840, "10x10")(lambda a: [a.sum(1), a.cos()]),
    row("sum-with-two-epilogues", 584, "12x12", tolerance=1e-4)(
        lambda a: [a.sum() + 2.0, a.sum() * 4.0]
    ),
    row("sum-and-range", 672, "12x12")(lambda a: [a.sum(1), a.max(1) - a.min(1)]),
    row("value-and-its-exponential", 1728, "12x12")(lambda a: [a * 2.0, (a * 2.0).exp()]),
    # Writes: what is assigned is stored in place if no other element of it is read.
    row("add-in-place", 768, "8x12", assigned=[0])(lambda a: a.assign(a + 1.0)),
    row("assign-from-each-other", 1536, "8x12 8x12", assigned=[0, 1])(
        lambda a, b: [a.assign(a + b), b.assign(b.exp())]
    ),
    row(
        "assign-and-read",
        (2, 1184, 0),
        "8x12",
        assigned=[0],
        # Open: elements of an assigned value are not computed again.
    )(lambda a: [a.assign(a * 2.0), a.sum(1)]),
    row("assign-matrix-product", 768, "8x8 8x8", assigned=[1])(lambda a, b: b.assign(b + a @ a)),
    row("assign-normalised", (2, 1536, 512), "+8x12", assigned=[0], owned=(1, 1536, 512))(
        lambda a: a.assign(a / a.sum(1, keepdim=True))
    ),
    row("assign-reversed", (2, 256, 256), "16", assigned=[0], owned=(1, 256, 256))(
        lambda a: a.assign(a.flip(0))
    ),
    row("assign-shifted", (2, 1584, 512), "8x12 1x12", assigned=[0], owned=(1, 1584, 512))(
        lambda a, x: a.assign(Tensor.cat([a[1:], x]))
    ),
    row("assign-chained", 1152, "8x12 8x12", assigned=[0], owned=768)(chained),
    row("assign-swapped", 1536, "8x12 8x12", assigned=[0, 1])(swapped),
    row("momentum", 1920, "8x12 8x12 8x12", assigned=[0, 1])(momentum),
    row(
        "running-statistics",
        (2, 1536, 512),
        "8x12 12 +12",
        assigned=[1, 2],
        # Open: epilogues that are assigned leave the loop nest.
    )(running_statistics),
    row("replaced-row", 96, "8x12 1x12", assigned=[0])(replaced_row),
    row("half-precision-weights", 1152, "8x12 8x12", assigned=[0], tolerance=5e-3)(
        lambda w, g: w.assign((w.cast(dt.float16) - g.half() * 0.5).float()),
        lambda w, g: w - g * 0.5,
    ),
    # Tensors that are partly realized or pinned: only as users realize them, not as programs.
    row("sum-beside-the-same-realized", 0, "4 4", eager=True)(
        lambda a, b: [(a + b).realize(), a + b]
    ),
    row("constant-times-one", 0, "", eager=True)(lambda: Tensor(3.5) * 1.0),
    row("constant-spread", 0, "", eager=True)(lambda: Tensor.full((2, 3), 4.0).T),
    row("view-turned-and-cut", 0, "4x4", eager=True)(lambda a: a.T.flip(0)[1:3]),
    row("view-itself", 0, "4x6", eager=True)(lambda a: a),
    row("view-reshaped", 0, "4x6", eager=True)(lambda a: a.reshape(24)),
    row("view-of-rows", 0, "4x6", eager=True)(lambda a: a[1:3]),
    row("view-of-one-row", 0, "4x6", eager=True)(lambda a: a[1:3][1].reshape(2, 3)),
    row("normalised-state", (2, 168, 0), "4x4 +4x4", eager=True)(normalised_state),
    row("pinned-then-plus", (2, 80, 0), "4 4", eager=True)(lambda a, b: (a + b).kernelize() + 2),
    row("pinned-and-its-child", (3, 128, 0), "4 4", eager=True)(pinned_and_child),
    row("moved-to-its-own-device", 0, "4", eager=True)(lambda a: a.to("auto")),
    row("variable", 0, "", eager=True)(lambda: Tensor.variable("n", 0, 9, 4)),
    row("variable-plus", 8, "", eager=True)(lambda: Tensor.variable("n", 0, 9, 4) + 2),
    row("constants-of-two-shapes", 32, "4", eager=True)(lambda a: [a * 0 + 1, Tensor.ones(3) * 1]),
]
