"""`TensorNeural`: activations, normalization, matrix products, convolution and pooling.

All of them are composed of primitive operations. A convolution is `sum(window(pad(x)) * w)`; the
compiler recognizes contractions by their structure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from numpy.typing import NDArray

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.tensor.core import rounds_once
from scheduler.tensor.power import TensorPower

Pair = int | Sequence[int]


class TensorNeural(TensorPower):
    """The operations of neural networks."""

    __slots__ = ()

    @rounds_once
    def sigmoid(self) -> Self:
        """Return 1/(1+exp(-x))."""
        return ((-self).exp() + 1.0).reciprocal()

    def relu(self) -> Self:
        """Return max(x, 0)."""
        return self.maximum(0)

    @rounds_once
    def elu(self, alpha: float = 1.0) -> Self:
        """Return x for x > 0, and alpha*(exp(x)-1) otherwise."""
        return (self > 0).where(self, (self.minimum(0).exp() - 1.0) * alpha)

    @rounds_once
    def silu(self) -> Self:
        """Return x*sigmoid(x)."""
        return self * self.sigmoid()

    @rounds_once
    def gelu(self, approximate: str = "none") -> Self:
        """Return the Gaussian error linear unit (Hendrycks, Gimpel 2016), exact or with tanh."""
        if approximate == "tanh":  # coefficient from the paper
            inner = (self + self * self * self * 0.044715) * math.sqrt(2.0 / math.pi)
            return self * 0.5 * (inner.tanh() + 1.0)
        return self * 0.5 * ((self * math.sqrt(0.5)).erf() + 1.0)

    @rounds_once
    def softmax(self, axis: int = -1) -> Self:
        """Return exp(x)/sum(exp(x)) along an axis; subtracting the maximum avoids overflow."""
        weights = (self - self.max(axis, keepdim=True)).exp()
        # Divide once per row. The sum is at least 1, so its reciprocal cannot overflow.
        return weights * (1.0 / weights.sum(axis, keepdim=True))

    @rounds_once
    def log_softmax(self, axis: int = -1) -> Self:
        """Return log(softmax(x))."""
        shifted = self - self.max(axis, keepdim=True)
        return shifted - shifted.exp().sum(axis, keepdim=True).log()

    @rounds_once
    def layernorm(self, axis: int | Sequence[int] = -1, eps: float = 1e-5) -> Self:
        """Return (x - mean)/sqrt(var + eps) over axes, with the biased variance."""
        centred = self - self.mean(axis, keepdim=True)
        variance = centred.square().mean(axis, keepdim=True)
        return centred * (variance + eps).rsqrt()

    @rounds_once
    def batchnorm(
        self, scale: Self, bias: Self, mean: Self, variance: Self, eps: float = 1e-5
    ) -> Self:
        """Return (x - mean)*scale/sqrt(variance + eps) + bias; parameters (C,) are for axis 1."""
        shape = (1, -1) + (1,) * (self.ndim - 2)
        factor = scale * (variance + eps).rsqrt()
        return self * factor.reshape(shape) + (bias - mean * factor).reshape(shape)

    @rounds_once
    def matmul(self, other: Self | NDArray[Any]) -> Self:
        """Return the matrix product by numpy's rules; raise ModelError if inner sizes differ."""
        other = self.operand(other)
        if not self.shape or not other.shape:
            raise ModelError(
                f"matmul: {self.shape} and {other.shape}: a scalar is not a matrix; use *"
            )
        if other.ndim == 1:
            return self.matmul(other.unsqueeze(1)).squeeze(-1)
        if self.ndim == 1:
            return self.unsqueeze(0).matmul(other).squeeze(-2)
        if self.shape[-1] != other.shape[-2]:
            raise ModelError(f"matmul: inner sizes of {self.shape} and {other.shape} differ")
        return (self.unsqueeze(-2) * other.transpose().unsqueeze(-3)).sum(-1)

    __matmul__ = matmul

    def __rmatmul__(self, other: Any) -> Self:
        return self.operand(other).matmul(self)

    @rounds_once
    def conv2d(
        self,
        weight: Self,
        bias: Self | None = None,
        stride: Pair = 1,
        padding: Any = 0,
        dilation: Pair = 1,
        groups: int = 1,
    ) -> Self:
        """Return the convolution (cross-correlation) over any number of trailing spatial axes.

        Args:
            weight: (C_out, C_in/groups, *kernel).
            bias: (C_out,) or None.
            stride: one int or one per spatial axis.
            padding: one int, one int per axis, or ((before, after), ...) per axis.
            dilation: one int or one per spatial axis.
            groups: number of channel groups; C_in groups are a depthwise convolution.

        Returns:
            (N, C_out, *out), out = (in + before + after - dilation*(kernel-1) - 1)//stride + 1.

        Raises:
            ModelError: channels and groups do not fit, or the kernel is larger than its padded
                input.
        """
        spatial = self.ndim - 2
        kernel = weight.shape[2:]
        out_channels, per_group = weight.shape[:2]
        if self.shape[1] != per_group * groups or out_channels % groups:
            raise ModelError(
                f"conv: input {self.shape} and weight {weight.shape} do not fit groups={groups}"
            )
        steps, spread = as_tuple(stride, spatial), as_tuple(dilation, spatial)
        x = self.pad(((0, 0), (0, 0), *pad_pairs(padding, spatial)))
        x = x.windows(kernel, steps, spread)  # (N, C, o.., k..)
        out = x.shape[2 : 2 + spatial]
        batch = x.shape[0]
        x = x.reshape((batch, groups, 1, per_group, *out, *kernel))
        w = weight.reshape((1, groups, out_channels // groups, per_group, *(1,) * spatial, *kernel))
        axes = (3, *range(4 + spatial, 4 + 2 * spatial))
        y = (x * w).sum(axes).reshape((batch, out_channels, *out))
        return y if bias is None else y + bias.reshape((1, -1) + (1,) * spatial)

    def windows(
        self, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
    ) -> Self:
        """Return all kernel windows of (N, C, s...) as (N, C, o..., k...)."""
        x, spatial = self, len(kernel)
        for i in range(spatial):
            x = x.window(2 + 2 * i, kernel[i], stride[i], dilation[i])
        order = (0, 1, *range(2, 2 + 2 * spatial, 2), *range(3, 3 + 2 * spatial, 2))
        return x.permute(order)

    def max_pool2d(
        self, kernel: Pair, stride: Pair | None = None, padding: Any = 0, dilation: Pair = 1
    ) -> Self:
        """Return the maximum of each window; padding has the smallest value of the type."""
        spatial = self.ndim - 2
        size = as_tuple(kernel, spatial)
        steps = size if stride is None else as_tuple(stride, spatial)
        pairs = ((0, 0), (0, 0), *pad_pairs(padding, spatial))
        x = self.pad(pairs, dt.min_value(self.dtype))
        x = x.windows(size, steps, as_tuple(dilation, spatial))
        return x.max(tuple(range(2 + spatial, 2 + 2 * spatial)))

    @rounds_once
    def avg_pool2d(
        self,
        kernel: Pair,
        stride: Pair | None = None,
        padding: Any = 0,
        *,
        count_include_pad: bool = True,
    ) -> Self:
        """Return the mean of each window; padding is zeros, or left out of the mean."""
        spatial = self.ndim - 2
        size = as_tuple(kernel, spatial)
        steps = size if stride is None else as_tuple(stride, spatial)
        pairs = ((0, 0), (0, 0), *pad_pairs(padding, spatial))
        axes = tuple(range(2 + spatial, 2 + 2 * spatial))
        ones = (1,) * spatial
        total = self.pad(pairs).windows(size, steps, ones).sum(axes)
        if count_include_pad or all(p == (0, 0) for p in pairs):
            return total / math.prod(size)
        # Count the elements of each window without padding, by the same windows over ones.
        unit = self.operand(1).broadcast_to((1, 1, *self.shape[2:]))
        return total / unit.pad(pairs).windows(size, steps, ones).sum(axes)


def as_tuple(value: Pair, count: int) -> tuple[int, ...]:
    """Return one int per axis from an int or a sequence of ints."""
    return (value,) * count if isinstance(value, int) else tuple(int(v) for v in value)


def pad_pairs(padding: Any, count: int) -> tuple[tuple[int, int], ...]:
    """Return (before, after) per axis from an int, ints, or pairs."""
    if isinstance(padding, int):
        return ((padding, padding),) * count
    return tuple((p, p) if isinstance(p, int) else (int(p[0]), int(p[1])) for p in padding)
