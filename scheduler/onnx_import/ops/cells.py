"""RNN, GRU and LSTM: one step of each. Formulas: ONNX operator documentation."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.ops.normalize import wide
from scheduler.onnx_import.ops.recurrent import Layer, read_layer
from scheduler.tensor import Tensor

States = tuple[Tensor, ...]


def rnn(ctx: NodeContext) -> Sequence[Value]:
    """Translate RNN: h' = f(x W + h R + b); outputs Y and Y_h.

    Raises:
        ModelError: shapes or attributes do not fit, or the sequence is too long to unroll.
    """
    layer = read_layer(ctx, 1, ("Tanh",))
    (weight,), (activation,) = layer.weights, layer.activations

    def step(gates: list[Tensor], state: States) -> States:
        return (activation(gates[0] + state[0].matmul(weight)),)

    return layer.run(step, (layer.initial(5),), _both_biases(layer))


def gru(ctx: NodeContext) -> Sequence[Value]:
    """Translate GRU: gates z, r, h; outputs Y and Y_h.

    The reset gate is applied before the product with R by default, after it with
    linear_before_reset=1. That takes one kernel a step, the default takes two.

    Raises:
        ModelError: shapes or attributes do not fit, or the sequence is too long to unroll.
    """
    layer = read_layer(ctx, 3, ("Sigmoid", "Tanh"))
    weight_z, weight_r, weight_h = layer.weights
    gate, candidate = layer.activations
    after = bool(ctx.integer("linear_before_reset", 0))
    bias = _both_biases(layer)
    if after:
        bias[2] = layer.input_bias[2]

    def step(gates: list[Tensor], state: States) -> States:
        (h,) = state
        z = gate(gates[0] + h.matmul(weight_z))
        r = gate(gates[1] + h.matmul(weight_r))
        if after:
            inner = r * (h.matmul(weight_h) + layer.hidden_bias[2])
        else:
            inner = (r * h).matmul(weight_h)
        new = candidate(gates[2] + inner)
        return ((1.0 - z) * new + z * h,)

    return layer.run(step, (layer.initial(5),), bias)


def lstm(ctx: NodeContext) -> Sequence[Value]:
    """Translate LSTM: gates i, o, f, c, with or without peepholes; outputs Y, Y_h and Y_c.

    Raises:
        ModelError: shapes or attributes do not fit, or the sequence is too long to unroll.
    """
    layer = read_layer(ctx, 4, ("Sigmoid", "Tanh", "Tanh"))
    weights = layer.weights
    gate, candidate, squash = layer.activations
    peepholes = _peepholes(layer)
    coupled = bool(ctx.integer("input_forget", 0))

    def peep(index: int, value: Tensor, cell: Tensor) -> Tensor:
        return value + peepholes[index] * cell if peepholes else value

    def step(gates: list[Tensor], state: States) -> States:
        h, cell = state
        i, o, f, c = (x + h.matmul(weight) for x, weight in zip(gates, weights, strict=True))
        i = gate(peep(0, i, cell))
        f = 1.0 - i if coupled else gate(peep(2, f, cell))
        new = f * cell + i * candidate(c)
        return (gate(peep(1, o, new)) * squash(new), new)

    return layer.run(step, (layer.initial(5), layer.initial(6)), _both_biases(layer))


def _both_biases(layer: Layer) -> list[Tensor]:
    return [a + b for a, b in zip(layer.input_bias, layer.hidden_bias, strict=True)]


def _peepholes(layer: Layer) -> list[Tensor]:
    """Return the peephole weights (D, 1, H) of gates i, o, f, or none."""
    ctx, hidden = layer.ctx, layer.hidden
    if not ctx.has(7):
        return []
    given = wide(ctx.tensor(7))
    if given.shape != (len(layer.backwards), 3 * hidden):
        raise ModelError(
            f"expected P of shape {(len(layer.backwards), 3 * hidden)}, found {given.shape}"
        )
    return [given[:, i * hidden : (i + 1) * hidden].unsqueeze(1) for i in range(3)]
