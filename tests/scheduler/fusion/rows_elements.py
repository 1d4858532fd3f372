"""Arithmetic of elements, values that no kernel computes, and views: an index of their reader."""

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import positive, row

ODD = np.array([1.5, np.inf, -np.inf, np.nan], np.float32)


def times_padding(a: Tensor, b: Tensor) -> Tensor:
    """Multiply by a part of a padded value that is all padding."""
    return a * b.pad([(4, 0)]).shrink([(0, 4)])


def doubled(x: Tensor, times: int = 24) -> Tensor:
    for _ in range(times):
        x = x + x
    return x


PHOTO = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)


def moved_about(a: Tensor) -> Tensor:
    y = a.permute(2, 0, 1).reshape(6, 20).flip(1)[1:5, ::3]
    return y.T.reshape(2, 14)[:, ::-1].reshape(7, 4) + 1.0


def chain_of_transposes(y: Tensor) -> Tensor:
    for i in range(8):
        y = (y * 0.5 + float(i)).tanh().T
    return y


def needed_through_a_third(x: Tensor, w: Tensor) -> list[Tensor]:
    """a feeds the product, the product feeds c: a and c share a's input and cannot be one."""
    a = (x * 2.0).contiguous()
    b = (a @ w).contiguous()
    return [a, b, b.T + a]


def small_and_independent(*given: Tensor) -> list[Tensor]:
    """Of different shapes, types and kinds: nothing is shared but the launch."""
    parts = enumerate(given[:-1])
    return [*(p.exp() if i % 2 else p.sum(0) * 2.0 for i, p in parts), given[-1] + 1]


def wide_values(source: Tensor) -> list[Tensor]:
    """All six wide values read one input: in one kernel they would all be alive at once."""
    wide = [(source * float(i + 2)).contiguous() for i in range(6)]
    return [w.flip(0).contiguous().sum(1) for w in wide]


STEPS = np.arange(7, dtype=np.int32)
ROWS = [
    # Arithmetic of elements, and values that no kernel needs to compute.
    row("sum-of-four", 200, "10 10 10 10")(lambda a, b, c, d: a + b + c + d),
    row("constant", 0, "", owned=(0, 4, 0))(lambda: Tensor(3.5)),
    row("elu", 80, "10")(lambda a: a.elu()),
    # There is no realized tensor ahead of time: the first a+b is a kernel, the second is none.
    row("equal-sums", 120, "10 10", owned=160)(lambda a, b: [a + b, a + b]),
    # likewise: one kernel for the first output, one for the second
    row("equal-products-one-transposed", 320, "4x5 4x5")(lambda a, b: [(a.T * b.T).T, a * b]),
    row("divided-twice", 64, "4 +4 +4")(lambda a, b, c: (a / b) / c),
    # `empty` is defined as zeros here.
    row("empty", 0, "", owned=(0, 64, 0))(lambda: [Tensor.empty(4), Tensor.empty(4)]),
    row("power-zero", 0, "4", owned=(0, 16, 0))(lambda x: x ** Tensor(0)),
    row("power-of-two", 32, "4")(lambda x: 2**x),
    # A root is no power of -0.0 and of minus infinity.
    row("power-half", 32, "+4", float_unsafe=True)(lambda x: x**0.5),
    row("power-minus-half", 32, "+4", float_unsafe=True)(lambda x: x**-0.5),
    row("power-two", 32, "4")(lambda x: x**2),
    row("power-eight", 32, "4")(lambda x: x**8),
    row("contiguous-between", (2, 192, 256), "8 8 8")(lambda a, b, c: (a + b).contiguous() + c),
    row("half-int-expanded", 128, [positive(4, 4, scale=5.0)], owned=320)(
        lambda a: a.half().expand(2, 4, 4).int().expand(2, 2, 4, 4)
    ),
    row("times-padding", 0, "4 4", float_unsafe=True, owned=(0, 16, 0))(times_padding),
    # What the switch is for: inf * 0 is nan, so the product cannot be left out without it.
    row("times-padding-safe", 32, [ODD, (4,)])(times_padding),
    row("doubled-24-times", 32, "4")(doubled),
    row("without-elements", 0, "3x4")(lambda a: a[:, :0] + 1.0),
    row("times-zero", 0, "4", float_unsafe=True, owned=(0, 16, 0))(lambda a: a * 0),
    row("times-zero-safe", 32, [ODD])(lambda a: a * 0),
    row("plus-times-zero", 0, "4 4", float_unsafe=True, owned=(0, 32, 0))(lambda a, b: b + a * 0),
    row("plus-times-zero-safe", 48, [ODD, (4,)])(lambda a, b: b + a * 0),
    row("two-maps", 200, "10 10 10")(lambda a, b, c: [a.cos(), b.sin() + c.sin()]),
    # float16 stands for bfloat16, which there is no type for; both are two bytes.
    row("half-again", 6144, "32x32")(lambda x: x.half().half().half().half()),
    # Views: what is permuted, cut, padded or repeated is an index of the kernel that reads it.
    row("sum-transposed-plus", 160, "2x5 2x5 5x2")(lambda a, b, c: (a + b).T + c),
    row("sum-reshape-transpose", 3072, "4x4x4x4 4x4x4x4")(
        lambda a, b: (a + b).reshape(16, 16).T.contiguous()
    ),
    row("expand-plus-permute", 4800, "10x10x1 10x10x1")(
        lambda a, b: (a + b).expand(10, 10, 10) + (a + b).permute(2, 1, 0)
    ),
    row("broadcast-row-transposed", 1048640, "16x8192 1x16")(lambda a, b: a + b.expand(8192, 16).T),
    row("small-product-times-rows", 1048704, "1x16 1x16 8192x16")(lambda a, b, d: (a * b) * d),
    row("permuted-copy", 480, "1x3x4x5")(lambda x: x.permute(0, 2, 3, 1).contiguous()),
    row("cut-then-pad", 24, [np.ones(2, np.float32), np.ones(2, np.float32)])(
        lambda a, b: (a + b).shrink([(0, 1)]).pad([(0, 1)]).contiguous()
    ),
    row("exp-cut-pad", 128, "4x4")(lambda a: a.exp2()[:-1, :-1].pad([(0, 1), (0, 1)]) * 2.0),
    row("padded-factor", 716, "5x7 8x9", stored=[])(lambda a, b: a.pad([(1, 2), (2, 0)], -2.5) * b),
    row("only-padding", 12, "4", owned=(0, 12, 0))(
        lambda a: a.pad([(3, 0)]).shrink([(0, 3)]).contiguous()
    ),
    row("expanded-copy", 80, "4x1")(lambda a: a.expand(4, 4).contiguous()),
    row("reshaped-copy", 0, "4x4", owned=(0, 128, 0))(lambda a: a.reshape(16).contiguous()),
    row("reciprocal-of-expanded", 32, "+4x1", owned=80)(lambda a: a.expand(4, 4).reciprocal()),
    row("expanded", 0, "4x1", owned=80)(lambda a: a.expand(4, 4)),
    row(
        "value-and-its-views",
        (2, 3648, 0),
        "16x24",
        owned=5184,
        # Open: realized, a part of a result is copied, not a view of it.
    )(lambda a: [a + 1.0, (a + 1.0).T, (a + 1.0)[2:5]]),
    row("views-of-one-result", 768, "8x12", owned=1920)(
        lambda a: [a.exp(), a.exp().T, a.exp().reshape(4, 24)]
    ),
    row("views-of-an-input", 0, "8x12", owned=1296)(lambda a: [a.T, a[2:5], a.reshape(96).flip(0)]),
    row("flip-and-add", 768, "8x12")(lambda a: a + a.flip((0, 1))),
    row("repeat-and-tile", 4992, "8x12 16x36")(lambda a, b: a.repeat(2, 3) + b),
    row("image-to-planes", 972, [PHOTO, (3,)])(
        lambda x, mean: x.permute(2, 0, 1).float() * (1 / 255) - mean.reshape(3, 1, 1)
    ),
    row("blocks-to-channels", 1024, "1x2x8x8")(
        lambda x: x.reshape(1, 2, 4, 2, 4, 2).permute(0, 3, 5, 1, 2, 4).reshape(1, 8, 4, 4).relu()
    ),
    row("plus-transposed", 1200, "10x10 10x10")(lambda a, b: a + b.T),
    row("movements-chained", 224, "4x5x6")(moved_about),
    # One weight for all: it is cheaper to compute its complement again for each element.
    row("blend-by-one-weight", 49156, "64x64 64x64 1x1")(lambda a, b, w: a * (1.0 - w) + b * w),
    # Where a program is cut: what is stored, and what is computed again for each reader.
    row("chain-of-transposes", 288, "6x6")(chain_of_transposes),
    row("column-forced-to-be-stored", (2, 608, 256), "8x1 8x8", stored=[("float32", (8, 1))])(
        lambda a, b: (a + 1.0).contiguous() * b
    ),
    row("column-computed-again", 544, "8x1 8x8", stored=[])(lambda a, b: (a + 1.0) * b),
    row("expensive-column", 8407040, "512x1 1x4096", flops=512 * 4096 * 8 - 1)(
        lambda a, row: (a.exp().tanh().erf().sin() + 0.0 * row).maximum(row)
    ),
    row("needed-through-a-third", (3, 2048, 0), "8x8 8x8", tolerance=1e-4)(needed_through_a_third),
    row("small-and-independent", 1136, [*((i + 3, 5) for i in range(6)), STEPS])(
        small_and_independent
    ),
    row("wide-values-each-summed", (13, 493056, 32768), "64x64", tolerance=1e-4)(wide_values),
]
