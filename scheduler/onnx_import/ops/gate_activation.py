"""Activation functions of recurrent layers, by the names and parameters that a node gives.

Formulas and defaults: ONNX operator documentation of RNN, GRU and LSTM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext
from scheduler.onnx_import.ops.activation import softplus, softsign
from scheduler.tensor.tensor import Tensor

Activation = Callable[[Tensor], Tensor]

# Name -> function of (x, alpha, beta).
_FUNCTIONS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "affine": lambda x, alpha, beta: x * alpha + beta,
    "elu": lambda x, alpha, _: x.elu(alpha),
    "hardsigmoid": lambda x, alpha, beta: (x * alpha + beta).clip(0.0, 1.0),
    "leakyrelu": lambda x, alpha, _: (x < 0).where(x * alpha, x),
    "relu": lambda x, *_: x.relu(),
    "scaledtanh": lambda x, alpha, beta: (x * beta).tanh() * alpha,
    "sigmoid": lambda x, *_: x.sigmoid(),
    "softplus": lambda x, *_: softplus(x),
    "softsign": lambda x, *_: softsign(x),
    "tanh": lambda x, *_: x.tanh(),
    "thresholdedrelu": lambda x, alpha, _: (x < alpha).where(0.0, x),
}
# Name -> default alpha and beta, of those that have one; None has to be given.
_ALPHA: dict[str, float | None] = {
    "affine": 1.0,
    "elu": 1.0,
    "hardsigmoid": 0.2,
    "leakyrelu": 0.01,
    "scaledtanh": None,
    "thresholdedrelu": 1.0,
}
_BETA: dict[str, float | None] = {"affine": 0.0, "hardsigmoid": 0.5, "scaledtanh": None}


def gate_activations(
    ctx: NodeContext, defaults: Sequence[str], directions: int
) -> list[list[Activation]]:
    """Return the activations of each direction, with the node's parameters.

    Values of activation_alpha and activation_beta go, in order, to the functions that take one.
    `defaults` are the names for one direction, where the node gives none.
    """
    given = ctx.attribute("activations")
    count = len(defaults)
    names = [_text(name) for name in given] if given else list(defaults) * directions
    if len(names) != count * directions:
        raise ModelError(f"expected {count * directions} activations, found {names}")
    alphas = iter(ctx.attribute("activation_alpha") or ())
    betas = iter(ctx.attribute("activation_beta") or ())
    chosen = [_activation(name, alphas, betas) for name in names]
    return [chosen[i * count : (i + 1) * count] for i in range(directions)]


def same_in_all_directions(ctx: NodeContext, count: int) -> bool:
    """Return whether the directions of a layer of `count` activations share them."""
    names = [_text(name).lower() for name in ctx.attribute("activations") or ()]
    with_parameters = any(ctx.attribute(f"activation_{p}") for p in ("alpha", "beta"))
    return names[:count] == names[count:] and not with_parameters if names else True


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    key = name.lower()
    if key not in _FUNCTIONS:
        raise ModelError(f"activation {name!r} is unknown; expected one of {sorted(_FUNCTIONS)}")
    alpha = _parameter(name, "activation_alpha", alphas, _ALPHA.get(key)) if key in _ALPHA else 0.0
    beta = _parameter(name, "activation_beta", betas, _BETA.get(key)) if key in _BETA else 0.0
    function = _FUNCTIONS[key]
    return lambda x: function(x, alpha, beta)


def _parameter(name: str, attribute: str, given: Iterator[float], default: float | None) -> float:
    value = next(given, default)
    if value is None:
        raise ModelError(f"activation {name!r} needs a value of {attribute}; it has no default")
    return float(value)
