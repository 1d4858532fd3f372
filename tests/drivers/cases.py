"""Programs of every kind of loop nest, small enough for an interpreter of OpenCL C."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.fuzz.networks import stack

Array = NDArray[Any]
Outputs = dict[str, Tensor]


class Feed:
    """Inputs and weights of one program; `inputs` holds the values of the inputs."""

    def __init__(self) -> None:
        self._values = np.random.default_rng(3)
        self.inputs: dict[str, Array] = {}

    def x(self, *shape: int) -> Tensor:
        """Return an input of multiples of 1/8."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self._draw(shape)
        return Tensor.input(name, shape)

    def w(self, *shape: int) -> Tensor:
        """Return a weight of multiples of 1/8."""
        return Tensor.weight(self._draw(shape))

    def _draw(self, shape: tuple[int, ...]) -> Array:
        return (self._values.integers(-8, 9, shape) / 8).astype(np.float32)


def lanes(f: Feed) -> Outputs:
    """Elements in vectors with remainders, rows and columns repeated, all kinds of numbers."""
    x, row, column = f.x(5, 37), f.x(1, 37), f.x(5, 1)
    whole = (x * 16).cast(dt.int32)
    return {
        "functions": (x.exp() + (x * x + 1.0).log() - x.tanh()) * row + column.erf(),
        "roots": (x.abs() + 0.5).sqrt() + x.floor() * 0.5 + x.round(),
        "choice": (x > column).where(x, row * 2.0),
        "whole": (whole // 3) * 5 + whole % 7 - (whole > 2).cast(dt.int32),
        "bytes": (whole.cast(dt.uint8) + 3).cast(dt.float32),
        "long": whole.cast(dt.int64) * 3 + 1,
        "one": x[0, 0:1] + 1.0,
    }


def movement(f: Feed) -> Outputs:
    """Values that come from elsewhere: by known steps, and by indices that are computed."""
    x, y = f.x(6, 20), f.x(6, 20)
    rows = (y[:, 0] * 8).cast(dt.int32).clip(0, 5)
    return {
        "moved": Tensor.cat([x.flip(1), y.transpose(0, 1).reshape(6, 20)], 0).pad(((1, 2), (3, 0))),
        "known": x.gather(Tensor.weight(np.array([3, -1, 0, 3])), 1) * 2.0,
        "computed": x.gather(rows, 0) + 1.0,
        "windows": x.window(1, 3, 2).max(2) - x.window(0, 2, 1).min(1).sum(),
    }


def reductions(f: Feed) -> Outputs:
    """Rows, columns, everything; long ones in parts; sums that are used where they are made."""
    x, long, wide = f.x(10, 33), f.x(5000), f.x(3, 7, 10)
    return {
        "rows": x.sum(1),
        "columns": x.max(0),
        "all": long.sum() + x.min(),
        "softmax": x.softmax(-1),
        "norm": x.layernorm() * f.w(33) + f.w(33),
        "middle": wide.mean(1).softmax(0),
        "several": wide.sum((0, 2)) / (wide.abs().max((0, 2)) + 1.0),
    }


def products(f: Feed) -> Outputs:
    """Matrices of even and odd sizes, batches, one row; large enough for tiles in local memory."""
    x, batch = f.x(37, 50), f.x(3, 9, 12)
    scores = batch @ batch.transpose(1, 2) * 0.125
    return {
        "odd": (x @ f.w(50, 23) + f.w(23)).relu(),
        "row": f.x(1, 24) @ f.w(24, 10),
        "attention": scores.softmax(-1) @ batch,
        "tiles": f.x(64, 32) @ f.x(32, 64),
        "left": (f.w(17, 37) @ x).gelu(),
    }


def convolutions(f: Feed) -> Outputs:
    """Padded, strided, of groups, of one channel each, of one pixel, dilated; pools."""
    x = f.x(1, 8, 9, 10)
    y = x.conv2d(f.w(10, 8, 3, 3), f.w(10), padding=1).relu()
    return {
        "strided": y.conv2d(f.w(5, 10, 3, 3), f.w(5), stride=2),
        "deep": (y.conv2d(f.w(10, 1, 3, 3), None, padding=1, groups=10) + y).mean((2, 3)),
        "grouped": x.conv2d(f.w(8, 4, 3, 3), f.w(8), groups=2, dilation=2).sum(1),
        "point": y.conv2d(f.w(16, 10, 1, 1), f.w(16)).gelu(),
        "pool": y.max_pool2d((3, 3), stride=2, padding=1),
    }


def winograd(f: Feed) -> Outputs:
    """Convolutions large enough for another algorithm."""
    x = f.x(1, 32, 12, 12).exp()
    y = x.conv2d(f.w(32, 32, 3, 3) * 0.125, f.w(32), padding=1).relu()
    return {"y": y.conv2d(f.w(32, 32, 3, 3) * 0.125, None, padding=1).sum(1)}


def five_layers(f: Feed) -> Outputs:
    """Convolutions, means, a product and softmax with 10 outputs, so that lanes are left over."""
    x = f.x(1, 3, 10, 10)
    y = x.conv2d(f.w(10, 3, 3, 3), f.w(10), padding=1).relu().conv2d(f.w(5, 10, 3, 3), stride=2)
    return {"y": (y.mean(2).mean(2) @ f.w(5, 10) + f.w(10)).softmax(-1)}


def halves(f: Feed) -> Outputs:
    """A convolution and a product with softmax, to be stored as halves."""
    return five_layers(f) | {"s": (f.x(16, 40) @ f.w(40, 24)).softmax(-1)}


def random_stack(seed: int) -> Callable[[Feed], Outputs]:
    def build(f: Feed) -> Outputs:
        outputs, inputs = stack(seed)
        f.inputs.update(inputs)
        return outputs

    return build


CASES: dict[str, Callable[[Feed], Outputs]] = {
    "lanes": lanes,
    "movement": movement,
    "reductions": reductions,
    "products": products,
    "convolutions": convolutions,
    "winograd": winograd,
    "five_layers": five_layers,
    "halves": halves,
    **{f"stack{seed}": random_stack(seed) for seed in (3, 8, 21)},
}
