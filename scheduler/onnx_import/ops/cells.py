"""Translators of RNN, GRU and LSTM: one step of each. Formulas: ONNX operator documentation."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.ops.normalize import wide
from scheduler.onnx_import.ops.recurrent import Layer, read_layer
from scheduler.tensor.tensor import Tensor

States = tuple[Tensor, ...]
# Of the gates, of the candidate, and of what the cell gives.
LSTM_ACTIVATIONS = ("Sigmoid", "Tanh", "Tanh")


def rnn(ctx: NodeContext) -> Sequence[Value]:
    """Translate RNN: h' = f(x W + h R + b); outputs Y and Y_h."""
    layer = read_layer(ctx, 1, ("Tanh",))
    (by_r,), (activation,) = layer.weights.gates, layer.activations

    def step(gates: list[Tensor], state: States) -> States:
        return (activation(gates[0] + by_r(state[0])),)

    return layer.run(step, (layer.initial(5),), _both_biases(layer))


def gru(ctx: NodeContext) -> Sequence[Value]:
    """Translate GRU: gates z, r, h; outputs Y and Y_h.

    The reset gate is applied before the product with R by default, after it with
    linear_before_reset=1. That takes one kernel a step, the default takes two.
    """
    layer = read_layer(ctx, 3, ("Sigmoid", "Tanh"))
    by_z, by_r, by_h = layer.weights.gates
    gate, candidate = layer.activations
    after = bool(ctx.integer("linear_before_reset", 0))
    bias = _both_biases(layer)
    if after:  # R's bias is inside of what the reset gate multiplies
        bias[2] = layer.input_bias[2]

    def step(gates: list[Tensor], state: States) -> States:
        (h,) = state
        z = gate(gates[0] + by_z(h))
        r = gate(gates[1] + by_r(h))
        inner = r * (by_h(h) + layer.hidden_bias[2]) if after else by_h(r * h)
        new = candidate(gates[2] + inner)
        return ((1.0 - z) * new + z * h,)

    return layer.run(step, (layer.initial(5),), bias)


def lstm(ctx: NodeContext) -> Sequence[Value]:
    """Translate LSTM: gates i, o, f, c, with or without peepholes; outputs Y, Y_h and Y_c."""
    return lstm_of(read_layer(ctx, 4, LSTM_ACTIVATIONS))


def lstm_of(layer: Layer) -> Sequence[Value]:
    """Return Y, Y_h and Y_c of an LSTM layer; see `lstm`."""
    ctx = layer.ctx
    gate, candidate, squash = layer.activations
    peepholes = _peepholes(layer)
    coupled = bool(ctx.integer("input_forget", 0))

    def peep(index: int, value: Tensor, cell: Tensor) -> Tensor:
        return value + peepholes[index] * cell if peepholes else value

    def step(gates: list[Tensor], state: States) -> States:
        h, cell = state
        i, o, f, c = (x + by_r(h) for x, by_r in zip(gates, layer.weights.gates, strict=True))
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
