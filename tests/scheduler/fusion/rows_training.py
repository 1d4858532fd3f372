"""Gradients and optimizer steps. Nothing here differentiates a graph: formulas are written out."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import positive, row

RATE, BETA1, BETA2, EPSILON = 0.01, 0.9, 0.999, 1e-8
CHANNELS = (0, 2, 3)  # the axes of (N, C, H, W) that statistics per channel go over


def conv_weight_gradient(x: Tensor, dy: Tensor) -> Tensor:
    """Return dL/dweight (O, C, kh, kw): x convolved with dy, channels as the batch."""
    return x.transpose(0, 1).conv2d(dy.transpose(0, 1)).transpose(0, 1)


def batchnorm_backward(
    x: Tensor, scale: Tensor, bias: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalise with the statistics of the batch; return the result and three gradients.

    Ioffe, Szegedy 2015, section 3, with the sums rewritten over the normalised values:
    dx = (dn - mean(dn) - n*mean(dn*n)) / sqrt(var + eps), n normalised, dn = dz*scale.
    """
    shape = (1, -1, 1, 1)
    mean = x.mean(CHANNELS, keepdim=True)
    rsqrt = ((x - mean).square().mean(CHANNELS, keepdim=True) + 1e-5).rsqrt()
    n = (x - mean) * rsqrt
    z = n * scale.reshape(shape) + bias.reshape(shape)
    slope = z.minimum(0).exp() if activation == "elu" else Tensor.zeros(*z.shape)
    dz = (z > 0).where(1.0, slope)
    dn = dz * scale.reshape(shape)
    centred = dn - dn.mean(CHANNELS, keepdim=True) - n * (dn * n).mean(CHANNELS, keepdim=True)
    y = z.elu() if activation == "elu" else z.relu()
    return y, centred * rsqrt, (dz * n).sum(CHANNELS), dz.sum(CHANNELS)


def adam(weights: Sequence[Tensor], gradients: Sequence[Tensor], *kept: Tensor) -> list[Tensor]:
    """Kingma, Ba 2015, algorithm 1; return new weights, and what is kept.

    That is the powers of both betas, (1,) each, then the moments: m and v for each weight.
    """
    power1, power2 = kept[0].assign(kept[0] * BETA1), kept[1].assign(kept[1] * BETA2)
    new, moments = [], []
    for i, (w, g) in enumerate(zip(weights, gradients, strict=True)):
        m, v = kept[2 + 2 * i], kept[3 + 2 * i]
        m = m.assign(m * BETA1 + g * (1.0 - BETA1))
        v = v.assign(v * BETA2 + g * g * (1.0 - BETA2))
        step = (m / (1.0 - power1)) / ((v / (1.0 - power2)).sqrt() + EPSILON)
        new.append(w.assign(w - step * RATE))
        moments += [m, v]
    return [*new, power1, power2, *moments]


def kept_by_adam(*shapes: tuple[int, ...]) -> list[Any]:
    """Inputs for `adam`: powers in (0, 1); second moments are positive."""
    powers = [np.array([BETA1**3], np.float32), np.array([BETA2**3], np.float32)]
    return [*powers, *(a for s in shapes for a in (s, positive(*s)))]


def conv_norm_adam(x: Tensor, *rest: Tensor) -> list[Tensor]:
    """Convolution with bias, normalisation of the batch, elu, sum: a step for its four weights."""
    weight, bias, scale, shift = rest[:4]
    y = x.conv2d(weight, bias)
    _, dy, dscale, dshift = batchnorm_backward(y, scale, shift, "elu")
    return adam(
        rest[:4], [conv_weight_gradient(x, dy), dy.sum(CHANNELS), dscale, dshift], *rest[4:]
    )


def norm_backward(x: Tensor, scale: Tensor, bias: Tensor) -> list[Tensor]:
    y, dx, dscale, dbias = batchnorm_backward(x, scale, bias, "relu")
    return [dx, dscale, dbias, y.contiguous()]


def softmax_backward(x: Tensor, g: Tensor) -> Tensor:
    y = x.softmax()
    return y * (g - (y * g).sum(-1, keepdim=True))


def conv_gradients(x: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of layers of convolution and relu."""
    values = [x]
    for w in weights:
        values.append(values[-1].conv2d(w).relu())
    gradients: list[Tensor] = []
    flowing: Tensor | None = None
    for i in reversed(range(len(weights))):
        open_ = values[i + 1] > 0
        dy = open_.float() if flowing is None else open_.where(flowing, 0.0)
        gradients.append(conv_weight_gradient(values[i], dy))
        flowing = dy.conv_transpose2d(weights[i])  # dL/dx (N, C, H, W), for dy (N, O, h, w)
    return gradients[::-1]


def convs_sgd(x: Tensor, *weights: Tensor) -> list[Tensor]:
    gradients = conv_gradients(x, weights)
    return [w.assign(w - g * RATE) for w, g in zip(weights, gradients, strict=True)]


CONV_NORM: list[Any] = [(32, 3, 3, 3), (32,), positive(32), (32,)]


def thrice_cosine(x: Tensor, g: Tensor) -> list[Tensor]:
    a = x.cos()
    b = a.cos()
    return [b.cos(), g * -b.sin() * -a.sin() * -x.sin()]


def negative_part(x: Tensor, g: Tensor) -> list[Tensor]:
    below = (x < 0).float()
    return [below * x, below * g]


def products(a: Tensor, g: Tensor) -> list[Tensor]:
    """Two products with sums between: p = a@a + 1, y = p @ (p + 2)."""
    p = a @ a + 1.0
    dp = g @ (p + 2.0).T + p.T @ g
    return [p @ (p + 2.0), dp @ a.T + a.T @ dp]


def tanh_beside(a: Tensor, b: Tensor, g: Tensor) -> list[Tensor]:
    y = a.tanh()
    da, db = g.split([a.shape[0], b.shape[0]])
    return [Tensor.cat([y, b]), da * (1.0 - y * y), db]


ROWS = [
    # The reference names neither sizes nor a bias of the convolution; with one there is more to do.
    row(
        "conv-norm-adam",
        (5, 37536, 5120),
        [(1, 3, 4, 4), *CONV_NORM, *kept_by_adam((32, 3, 3, 3), (32,), (32,), (32,))],
        tolerance=2e-3,
        assigned=range(1, 15),
    )(conv_norm_adam),
    # The four outputs: gradients of values, scale and bias, and the result after relu.
    row("batchnorm-gradients", 24832, "2x16x8x8 16 16", tolerance=1e-4)(norm_backward),
    row("softmax-gradient", 18432, "2x3x16x16 2x3x16x16")(softmax_backward),
    row(
        "four-convs-sgd",
        (11, 6261776, 1415424),
        "2x3x12x12 4x3x3x3 8x4x3x3 16x8x3x3 32x16x3x3",
        tolerance=1e-3,
        large="2x3x64x64 4x3x3x3 8x4x3x3 16x8x3x3 32x16x3x3",
        assigned=(1, 2, 3, 4),
    )(convs_sgd),
    row("cosine-thrice-gradient", 160, "10 10")(thrice_cosine),
    row("negative-part-gradient", 1600, "100 100")(negative_part),
    row("products-gradient", (3, 3200, 512), "10x10 10x10", tolerance=1e-4)(products),
    # In a program the gradient of b is an output of its own: a copy of 10 elements.
    row("tanh-beside-gradient", 240, "10 10 20", owned=320)(tanh_beside),
]
