"""Translators of activations, and of trigonometric and hyperbolic functions.

Formulas and defaults: ONNX operator documentation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value, normal_axis
from scheduler.tensor.tensor import Tensor

# --- Trigonometric and hyperbolic functions, with formulas that avoid cancellation ------------
# float32 results are accurate to a few units in the last place over the whole range, provided that
# sin, cos, exp, log and tanh are. The polynomials minimize the relative error against float64. They
# were fitted by iteratively reweighted least squares (Lawson) on Chebyshev nodes, and rounded to
# float32.

Function = Callable[[Tensor], Tensor]

# atan(t) = t p(t^2), |t| <= tan(pi/8); relative error 1.5e-9.
_ATAN = (
    1.0,
    -0.3333330750465393,
    0.1999821662902832,
    -0.14240071177482605,
    0.10573390126228333,
    -0.060345571488142014,
)
# atanh(s) = s p(s^2), |s| <= 1/3; relative error 7.8e-9. For float64 it is the power series.
_ATANH = (1.0, 0.3333315849304199, 0.200124591588974, 0.13980233669281006, 0.14089517295360565)
_ATANH_DOUBLE = tuple(1.0 / (2 * k + 1) for k in range(17))
_TAN_PI_8 = math.tan(math.pi / 8)
# From this value on, sqrt(x^2 + 1) rounds to x.
_LARGE = 1e9


def tan(x: Tensor) -> Tensor:
    """Return sin(x) / cos(x)."""
    return x.sin() / x.cos()


def atan(x: Tensor) -> Tensor:
    """Return the arc tangent; three intervals of |x| are mapped to [-tan(pi/8), tan(pi/8)]."""
    a = x.abs()
    far, middle = a > 1 / _TAN_PI_8, a > _TAN_PI_8
    above = far.where(-1.0, middle.where(a - 1.0, a))
    below = far.where(a, middle.where(a + 1.0, 1.0))
    start = far.where(math.pi / 2, middle.where(math.pi / 4, a.operand(0.0)))
    t = above / below
    y = t * _polynomial(t * t, _ATAN)
    if x.dtype is dt.float64:  # one step of Newton's method on tan(y) = t
        y = y + (t * y.cos() - y.sin()) / (t * y.sin() + y.cos())
    y = start + y
    return (x < 0).where(-y, y)


def asin(x: Tensor) -> Tensor:
    """Return the arc sine, NaN outside [-1, 1]; near the ends 1 - x and 1 + x are exact."""
    return atan(x / ((1.0 - x) * (x + 1.0)).sqrt())


def acos(x: Tensor) -> Tensor:
    """Return the arc cosine, NaN outside [-1, 1], from the tangent of half the angle."""
    return atan(((1.0 - x) / (x + 1.0)).sqrt()) * 2.0


def cosh(x: Tensor) -> Tensor:
    """Return (e^x + e^-x) / 2 from e^(x/2), because e^x overflows before the result does."""
    h = (x.abs() * 0.5).exp()
    return h * 0.5 * h + 0.5 / h / h


def sinh(x: Tensor) -> Tensor:
    """Return (e^x - e^-x) / 2 as tanh(x) cosh(x)."""
    return x.tanh() * cosh(x)


def log1p(x: Tensor) -> Tensor:
    """Return log(1 + x), NaN below -1; accurate also if 1 + x rounds to 1."""
    return ((x <= 1) & (x > -0.5)).where(log1p_unit(x), (x + 1.0).log())


def log1p_unit(x: Tensor) -> Tensor:
    """Return log(1 + x) = 2 atanh(x / (2 + x)) for -1/2 <= x <= 1."""
    s = x / (x + 2.0)
    return _atanh_near_0(s) * 2.0


def asinh(x: Tensor) -> Tensor:
    """Return log(|x| + sqrt(x^2 + 1)) with the sign of x."""
    a = x.abs()
    near = log1p(a + a * (a / ((a * a + 1.0).sqrt() + 1.0)))
    y = (a > _LARGE).where(a.log() + math.log(2.0), near)
    return (x < 0).where(-y, y)


def acosh(x: Tensor) -> Tensor:
    """Return log(x + sqrt(x^2 - 1)), NaN below 1."""
    t = x - 1.0
    near = log1p(t + t.sqrt() * (t + 2.0).sqrt())
    return (x > _LARGE).where(x.log() + math.log(2.0), near)


def atanh(x: Tensor) -> Tensor:
    """Return log((1 + x) / (1 - x)) / 2, NaN outside [-1, 1]."""
    near = x.abs() <= 1.0 / 3.0
    return near.where(_atanh_near_0(x), ((x + 1.0) / (1.0 - x)).log() * 0.5)


def _atanh_near_0(x: Tensor) -> Tensor:
    return x * _polynomial(x * x, _ATANH_DOUBLE if x.dtype is dt.float64 else _ATANH)


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Return a polynomial by Horner's scheme; the coefficients start at the lowest power."""
    result = x * coefficients[-1] + coefficients[-2]
    for c in coefficients[-3::-1]:
        result = result * x + c
    return result


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)) without overflow, accurate also far below 0."""
    return x.maximum(0) + log1p_unit((-x.abs()).exp())


def softsign(x: Tensor) -> Tensor:
    """Return x / (1 + |x|)."""
    return x / (x.abs() + 1.0)


def mish(x: Tensor) -> Tensor:
    """Return x tanh(softplus(x))."""
    return x * softplus(x).tanh()


def hard_swish(x: Tensor) -> Tensor:
    """Return x clip(x/6 + 1/2, 0, 1)."""
    return x * (x * (1.0 / 6.0) + 0.5).clip(0.0, 1.0)


def hard_sigmoid(ctx: NodeContext) -> Value:
    """Translate HardSigmoid: clip(alpha x + beta, 0, 1)."""
    alpha, beta = ctx.number("alpha", 0.2), ctx.number("beta", 0.5)
    return (ctx.tensor(0) * alpha + beta).clip(0.0, 1.0)


def leaky_relu(ctx: NodeContext) -> Value:
    """Translate LeakyRelu: alpha x below 0."""
    x = ctx.tensor(0)
    return (x < 0).where(x * ctx.number("alpha", 0.01), x)


def prelu(ctx: NodeContext) -> Value:
    """Translate PRelu: slope x below 0; the slope broadcasts to the shape of x.

    Old exporters write a slope (C,) that does not broadcast; it applies to the channels, axis 1.
    """
    x, slope = ctx.tensor(0), ctx.tensor(1)
    if x.ndim > 2 and slope.ndim == 1 and slope.shape[0] not in (1, x.shape[-1]):
        slope = slope.reshape((-1, *[1] * (x.ndim - 2)))
    return (x < 0).where(x * slope.broadcast_to(x.shape), x)


def elu(ctx: NodeContext) -> Value:
    """Translate Elu: alpha (exp(x) - 1) below 0."""
    return ctx.tensor(0).elu(ctx.number("alpha", 1.0))


def selu(ctx: NodeContext) -> Value:
    """Translate Selu: gamma Elu(x)."""
    alpha = ctx.number("alpha", 1.67326319217681884765625)
    gamma = ctx.number("gamma", 1.05070102214813232421875)
    return ctx.tensor(0).elu(alpha) * gamma


def celu(ctx: NodeContext) -> Value:
    """Translate Celu: max(0, x) + min(0, alpha (exp(x/alpha) - 1))."""
    x, alpha = ctx.tensor(0), ctx.number("alpha", 1.0)
    return x.maximum(0) + ((x.minimum(0) / alpha).exp() - 1.0) * alpha


def gelu(ctx: NodeContext) -> Value:
    """Translate Gelu (opset 20): the exact formula by default, or the tanh formula."""
    kind = ctx.text("approximate", "none")
    if kind not in ("none", "tanh"):
        raise ModelError(f"approximate must be none or tanh, found {kind!r}")
    return ctx.tensor(0).gelu(kind)


def softmax(ctx: NodeContext) -> Value:
    """Translate Softmax and LogSoftmax."""
    function = Tensor.log_softmax if ctx.node.op_type == "LogSoftmax" else Tensor.softmax
    return along_axis(ctx, function)


def along_axis(ctx: NodeContext, function: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Return function(x, axis), with the meaning of `axis` in the node's opset.

    Before opset 13 the function is applied over all axes from `axis` on (default 1). From opset 13
    on it is applied along `axis` (default -1).
    """
    x = ctx.tensor(0)
    if ctx.opset >= 13:
        return function(x, normal_axis(ctx.integer("axis", -1), x.ndim))
    return from_axis_on(x, ctx.integer("axis", 1), function)


def from_axis_on(x: Tensor, axis: int, function: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Return function(matrix, 1), where x becomes a matrix whose rows span the axes from `axis`."""
    axis = x.ndim if axis == x.ndim else normal_axis(axis, x.ndim)
    flat = x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    return function(flat, 1).reshape(x.shape)
