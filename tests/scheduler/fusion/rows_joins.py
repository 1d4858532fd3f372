"""Concatenations are stores into slices of one buffer, gathers are reads at a computed place."""

from __future__ import annotations

from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import below, row


def rotary(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate pairs (i, i + 6) of the last axis."""
    turned = Tensor.cat([-x[:, 6:], x[:, :6]], 1)
    return x * angle.cos() + turned * angle.sin()


def tree(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return Tensor.cat([Tensor.cat([a, b + 1.0]), Tensor.cat([c * 2.0, d])], 1).relu()


def pieces(x: Tensor) -> Tensor:
    first, second, third = x.split([2, 3, 7], 1)
    return Tensor.cat([third.exp(), first * 2.0, -second], 1)


ROWS = [
    # Concatenations are stores into slices of one buffer, slices are indices: no copies.
    row("roll", 128, "16")(lambda x: Tensor.cat([x[5:], x[:5]])),
    row("concat-then-relu", 1536, "8x12 8x12")(lambda a, b: Tensor.cat([a + 1.0, b * 2.0]).relu()),
    row("concat-then-sum", 800, "8x12 8x12")(lambda a, b: Tensor.cat([a.exp(), b], 1).sum(1)),
    row("concat-tree", 3072, "8x12 8x12 8x12 8x12")(tree),
    row("concat-pieces", 768, "8x12")(pieces),
    row("concat-of-sums", 676, "8x12 5x12")(lambda a, b: Tensor.cat([a.sum(1), b.max(1)])),
    row("concat-cut-again", 384, "8x12 8x12")(lambda a, b: Tensor.cat([a.exp(), b.exp()])[2:6]),
    row("stack-of-sums", 480, "8x12")(lambda a: Tensor.stack([a.sum(1), a.max(1), a.min(1)], 1)),
    row("stack-of-ten", 704, "16")(lambda x: Tensor.stack([x * float(i) for i in range(10)])),
    row("rotary", 1152, "8x12 8x12")(rotary),
    row("concat-softmax", 1536, "8x12 8x12")(lambda a, b: Tensor.cat([a, b], 1).softmax()),
    row("concat-product", 1536, "8x12 8x12 24x6")(lambda a, b, w: Tensor.cat([a, b], 1) @ w),
    row("pieces-as-outputs", 768, "8x12")(lambda x: [y.exp() for y in x.split([3, 4, 5], 1)]),
    row(
        "concat-beside-parts",
        (2, 384, 0),
        "16 16",
        # Open: an output that is a part of a concatenation too is stored, then copied.
    )(lambda a, b: [a.exp(), Tensor.cat([a.exp(), b.sin()])]),
    row("concat-of-cube-sums-plus", (2, 10400, 1024), "10x10x10 10x10x10")(
        lambda a, b: Tensor.cat([a.sum(0), b.sum(0)]) + 10.0
    ),
    # What the peer cannot fuse stands for a reader of the buffer: here, any operation.
    row("concat-of-all-slices", 80, "10")(lambda a: Tensor.cat([a[:0], a, a[10:]]).sin()),
    row("concat-of-one", 80, "10")(lambda a: Tensor.cat([a]).sin()),
    row("concat-of-concat-of-one", 0, "10", owned=(0, 80, 0))(
        lambda a: Tensor.cat([Tensor.cat([a])])
    ),
    # Gathers are reads at a computed place.
    row("gather-rows", 168, [(10, 10), below(10, 2)])(lambda x, i: x[i]),
    row("gather-of-steps", 8, "", owned=(0, 8, 0))(lambda: (Tensor.arange(10) + 1)[[0]]),
    row("gather-of-steps-cut", 8, "")(lambda: Tensor.arange(16).reshape(4, 4)[1:2, [1, 2]]),
    row("gather-many", 576, [(32768, 4), below(32768, 16)])(lambda x, i: x.gather(i)),
    row("gather-of-gather", 280, [(20, 6), below(20, 9), below(9, 5)])(lambda x, i, j: x[i][j]),
    row("gather-by-gathered", 280, [(20, 6), below(20, 9), below(9, 5)])(lambda x, i, j: x[i[j]]),
    row("gathers-added", 720, [(20, 6), below(20, 9), below(20, 9)])(lambda x, i, j: x[i] + x[j]),
    row("gather-computed-place", 468, [(20, 6), below(19, 9)])(lambda x, i: x[i + 1].relu()),
    row("gather-computed-values", 468, [(20, 6), below(20, 9)])(lambda x, i: x.exp()[i]),
    row("gather-two-axes", 340, [(20, 6), below(20, 9), below(6, 4)])(
        lambda x, i, j: x.gather(i, 0).gather(j, 1)
    ),
    row("gather-picked", 144, [(20, 6), below(20, 9), below(6, 9)])(lambda x, i, j: x[i, j]),
    row("gather-by-argmax", 352, "4x10 10x6")(lambda s, x: x[s.argmax(1)]),
    row("scatter-add", 348, [(9, 6), below(4, 9)])(
        lambda v, i: Tensor.arange(4).unsqueeze(1).eq(i.unsqueeze(0)).float() @ v
    ),
    row("histogram", 180, [below(5, 40)])(
        lambda i: Tensor.arange(5).unsqueeze(1).eq(i.unsqueeze(0)).sum(1)
    ),
]
