"""Views: what is permuted, cut, padded or repeated is an index of the kernel that reads it."""

from __future__ import annotations

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import Row, positive

PHOTO = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)


def moved_about(a: Tensor) -> Tensor:
    y = a.permute(2, 0, 1).reshape(6, 20).flip(1)[1:5, ::3]
    return y.T.reshape(2, 14)[:, ::-1].reshape(7, 4) + 1.0


ROWS = [
    Row(
        "sum-transposed-plus", (1, 160, 0), [(2, 5), (2, 5), (5, 2)], lambda a, b, c: (a + b).T + c
    ),
    Row(
        "sum-reshape-transpose",
        (1, 3072, 0),
        [(4, 4, 4, 4), (4, 4, 4, 4)],
        lambda a, b: (a + b).reshape(16, 16).T.contiguous(),
    ),
    Row(
        "expand-plus-permute",
        (1, 4800, 0),
        [(10, 10, 1), (10, 10, 1)],
        lambda a, b: (a + b).expand(10, 10, 10) + (a + b).permute(2, 1, 0),
    ),
    Row(
        "broadcast-row", (1, 1048640, 0), [(8192, 16), (1, 16)], lambda a, b: a + b.expand(8192, 16)
    ),
    Row(
        "broadcast-row-transposed",
        (1, 1048640, 0),
        [(16, 8192), (1, 16)],
        lambda a, b: a + b.expand(8192, 16).T,
    ),
    Row(
        "small-product-times-rows",
        (1, 1048704, 0),
        [(1, 16), (1, 16), (8192, 16)],
        lambda a, b, d: (a * b) * d,
    ),
    Row("permuted-copy", (1, 480, 0), [(1, 3, 4, 5)], lambda x: x.permute(0, 2, 3, 1).contiguous()),
    Row(
        "cut-then-pad",
        (1, 24, 0),
        [np.ones(2, np.float32), np.ones(2, np.float32)],
        lambda a, b: (a + b).shrink([(0, 1)]).pad([(0, 1)]).contiguous(),
    ),
    Row(
        "exp-cut-pad",
        (1, 128, 0),
        [(4, 4)],
        lambda a: a.exp2()[:-1, :-1].pad([(0, 1), (0, 1)]) * 2.0,
    ),
    Row(
        "only-padding",
        (1, 12, 0),
        [(4,)],
        lambda a: a.pad([(3, 0)]).shrink([(0, 3)]).contiguous(),
        owned=(0, 12, 0),
    ),
    Row("expanded-copy", (1, 80, 0), [(4, 1)], lambda a: a.expand(4, 4).contiguous()),
    Row(
        "reshaped-copy",
        (0, 0, 0),
        [(4, 4)],
        lambda a: a.reshape(16).contiguous(),
        owned=(0, 128, 0),
    ),
    Row(
        "expanded-copy-twice",
        (1, 80, 0),
        [(4, 1)],
        lambda a: a.expand(4, 4).contiguous().contiguous(),
    ),
    Row("reshaped-view", (0, 0, 0), [(4, 4)], lambda a: a.reshape(2, 8), owned=(0, 128, 0)),
    Row(
        "reciprocal-of-expanded",
        (1, 32, 0),
        [positive(4, 1)],
        lambda a: a.expand(4, 4).reciprocal(),
        owned=(1, 80, 0),
    ),
    Row("sum-reshaped", (1, 192, 0), [(16,), (16,)], lambda a, b: (a + b).reshape(8, 2)),
    Row("expanded", (0, 0, 0), [(4, 1)], lambda a: a.expand(4, 4), owned=(1, 80, 0)),
    Row(
        "value-and-its-views",
        (2, 3648, 0),
        [(16, 24)],
        lambda a: [a + 1.0, (a + 1.0).T, (a + 1.0)[2:5]],
        owned=(1, 5184, 0),
        open=(1, "realized, a part of a result is copied, not a view of it"),
    ),
    Row(
        "views-of-one-result",
        (1, 768, 0),
        [(8, 12)],
        lambda a: [a.exp(), a.exp().T, a.exp().reshape(4, 24)],
        owned=(1, 1920, 0),
    ),
    Row(
        "views-of-an-input",
        (0, 0, 0),
        [(8, 12)],
        lambda a: [a.T, a[2:5], a.reshape(96).flip(0)],
        owned=(1, 1296, 0),
    ),
    Row("flip-and-add", (1, 768, 0), [(8, 12)], lambda a: a + a.flip((0, 1))),
    Row(
        "repeat-and-tile",
        (1, 4992, 0),
        [(8, 12), (16, 36)],
        lambda a, b: a.repeat(2, 3) + b,
        lambda a, b: np.tile(a, (2, 3)) + b,
    ),
    Row(
        "image-to-planes",
        (1, 972, 0),
        [PHOTO, (3,)],
        lambda x, mean: x.permute(2, 0, 1).float() * (1 / 255) - mean.reshape(3, 1, 1),
    ),
    Row(
        "blocks-to-channels",
        (1, 1024, 0),
        [(1, 2, 8, 8)],
        lambda x: x.reshape(1, 2, 4, 2, 4, 2).permute(0, 3, 5, 1, 2, 4).reshape(1, 8, 4, 4).relu(),
    ),
    Row("plus-transposed", (1, 1200, 0), [(10, 10), (10, 10)], lambda a, b: a + b.T),
    Row("transposed-plus", (1, 1200, 0), [(10, 10), (10, 10)], lambda a, b: a.T + b),
    Row("movements-chained", (1, 224, 0), [(4, 5, 6)], moved_about),
    # One weight for all: it is cheaper to compute its complement again for each element.
    Row(
        "blend-by-one-weight",
        (1, 49156, 0),
        [(64, 64), (64, 64), (1, 1)],
        lambda a, b, w: a * (1.0 - w) + b * w,
    ),
]
