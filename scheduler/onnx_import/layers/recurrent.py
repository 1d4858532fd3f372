"""Translators of RNN, GRU and LSTM, unrolled over the sequence.

One matrix product multiplies the inputs of all steps by W. The directions of a bidirectional layer
are a batch axis: step s computes time s of the forward and time T-1-s of the backward direction.
Each gate has its own product with its rows of R, so one kernel can compute all gates of a hidden
unit. In shapes, D is the number of directions, T of steps, N the batch, I the input size, H the
hidden size and G the number of gates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.layers.normalize import wide
from scheduler.onnx_import.ops.activation import softplus, softsign
from scheduler.tensor.tensor import Tensor

# --- Activation functions of recurrent layers, by name and parameters -------------------------

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
# Name -> default of alpha and of beta, for functions with such a parameter; None is required.
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

    The values of activation_alpha and activation_beta belong, in order, to the functions that have
    such a parameter. `defaults` are the names of the default functions of one direction.
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
    """Return whether all directions of a layer have the same `count` activations."""
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


# Maximum number of steps of a sequence. Each step adds to the graph, so a longer one compiles for
# hours.
MAX_STEPS = 1024
# Attribute `direction` -> whether each direction runs backward.
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}

# (input product of each gate (D, N, H), state (h, ...)) -> new state
Cell = Callable[[list[Tensor], tuple[Tensor, ...]], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Weights:
    """The products with a layer's weights, independent of how the weights are stored."""

    hidden: int  # size H of the hidden state
    inputs: Callable[[Tensor], Tensor]  # X (1, T·N, I) -> X W without bias, (D, T·N, G·H)
    # For each gate: hidden state (D, N, H) -> its product with R without bias, (D, N, H).
    gates: Sequence[Callable[[Tensor], Tensor]]


@dataclass(frozen=True, slots=True)
class Layer:
    """A recurrent layer with D directions over T steps of a batch of N, hidden size H."""

    ctx: NodeContext  # the node
    inputs: Tensor  # products X W of all gates without bias, in step order, (D, T, N, G·H)
    weights: Weights  # products with the weights
    input_bias: list[Tensor]  # bias of the input product of each gate, (D, 1, H)
    hidden_bias: list[Tensor]  # bias of the hidden state's product of each gate, (D, 1, H)
    backwards: tuple[bool, ...]  # whether each direction runs backward
    activations: list[Activation]  # functions of the cell, each for all directions

    @property
    def hidden(self) -> int:
        """Size of the hidden state."""
        return self.weights.hidden

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Shape (D, N, H) of a state."""
        return (len(self.backwards), self.inputs.shape[2], self.hidden)

    def initial(self, index: int) -> Tensor:
        """Return the initial state in input `index` as (D, N, H), or zeros if it is left out."""
        if not self.ctx.has(index):
            return Tensor.zeros(*self.state_shape, dtype=self.inputs.dtype)
        given = wide(self.ctx.tensor(index))
        if self.ctx.integer("layout", 0):
            given = given.permute(1, 0, 2)
        if given.shape != self.state_shape:
            raise ModelError(f"expected an initial state {self.state_shape}, found {given.shape}")
        return given

    def run(self, cell: Cell, state: tuple[Tensor, ...], bias: Sequence[Tensor]) -> Sequence[Value]:
        """Run all steps.

        Args:
            cell: one step.
            state: initial states (D, N, H); the first is the hidden state.
            bias: bias of each gate, (D, 1, H).

        Returns:
            The hidden states of all steps (T, D, N, H), and the last states, in the node's layout
            and type.
        """
        hidden, steps = self.hidden, self.inputs.shape[1]
        whole = self.inputs + Tensor.cat(list(bias), axis=2).unsqueeze(1)
        valid = self._valid()
        outputs = []
        for step in range(steps):
            row = whole[:, step]
            gates = [row[:, :, i : i + hidden] for i in range(0, row.shape[2], hidden)]
            new = cell(gates, state)
            mask = valid[step] if valid else None
            outputs.append(new[0] if mask is None else mask.where(new[0], 0.0))
            state = (
                new
                if mask is None
                else tuple(mask.where(a, b) for a, b in zip(new, state, strict=True))
            )
        dtype = self.ctx.tensor(0).dtype
        y = in_step_order(Tensor.stack(outputs, axis=1), self.backwards).permute(1, 0, 2, 3)
        last = list(state)
        if self.ctx.integer("layout", 0):
            y, last = y.permute(2, 0, 1, 3), [value.permute(1, 0, 2) for value in last]
        return [value.as_type(dtype) for value in (y, *last)][: max(1, self.ctx.outputs)]

    def _valid(self) -> list[Tensor | None]:
        """Return, per step, which sequences include it, bool (D, N, 1), or None for all of them."""
        if not self.ctx.has(4):
            return []
        steps = self.inputs.shape[1]
        times = np.arange(steps, dtype=np.int32)
        order = np.stack([times[::-1] if back else times for back in self.backwards], axis=1)
        given = self.ctx.value(4)
        if isinstance(given, Tensor):
            lengths = given.cast(dt.int32).reshape((1, -1, 1))
            return [Tensor.weight(row.reshape(-1, 1, 1)) < lengths for row in order]
        known = order[:, :, None, None] < given.reshape(1, 1, -1, 1)
        return [None if row.all() else Tensor.weight(np.asarray(row, order="C")) for row in known]


def read_layer(
    ctx: NodeContext, gates: int, defaults: Sequence[str], weights: Weights | None = None
) -> Layer:
    """Return the layer of a node from its inputs X, W, R and B.

    Args:
        ctx: the node.
        gates: number of gates.
        defaults: names of the default activations of one direction.
        weights: products with W and R; the default is for the W and R of RNN, GRU and LSTM.
    """
    backwards = directions(ctx)
    x = wide(ctx.tensor(0))
    if ctx.integer("layout", 0):
        x = x.permute(1, 0, 2)
    steps, batch, size = x.shape
    made = weights or _weights(ctx, gates, size)
    hidden, count = made.hidden, len(backwards)
    if ctx.integer("hidden_size", hidden) != hidden:
        raise ModelError(f"hidden_size={ctx.integer('hidden_size', 0)}, but R has {hidden}")
    if not 1 <= steps <= MAX_STEPS:
        raise ModelError(
            f"a sequence of {steps} steps cannot be unrolled; expected 1 to {MAX_STEPS}: export "
            "the model for shorter sequences"
        )
    # One product for all steps: (D, T·N, G·H).
    products = made.inputs(x.reshape((1, steps * batch, size)))
    inputs = in_step_order(products.reshape((count, steps, batch, gates * hidden)), backwards)
    shape = (count, 1, 2 * gates * hidden)
    bias = wide(ctx.tensor(3)).reshape(shape) if ctx.has(3) else Tensor.zeros(*shape, dtype=x.dtype)
    biases = [bias[:, :, i : i + hidden] for i in range(0, shape[2], hidden)]
    activations = _for_all_directions(ctx, defaults, count)
    return Layer(ctx, inputs, made, biases[:gates], biases[gates:], backwards, activations)


def directions(ctx: NodeContext) -> tuple[bool, ...]:
    """Return whether each direction of a layer runs backward."""
    found = _DIRECTIONS.get(ctx.text("direction", "forward"))
    if found is None:
        raise ModelError(f"direction must be one of {list(_DIRECTIONS)}")
    return found


def _weights(ctx: NodeContext, gates: int, size: int) -> Weights:
    """Return the products with inputs W (D, G·H, I) and R (D, G·H, H)."""
    w, r = wide(ctx.tensor(1)), wide(ctx.tensor(2))
    hidden, count = r.shape[-1], len(directions(ctx))
    for name, value, shape in (
        ("W", w, (count, gates * hidden, size)),
        ("R", r, (count, gates * hidden, hidden)),
    ):
        if value.shape != shape:
            raise ModelError(f"expected {name} of shape {shape}, found {value.shape}")
    parts = [r[:, i : i + hidden].transpose() for i in range(0, gates * hidden, hidden)]
    return Weights(hidden, lambda x: x.matmul(w.transpose()), [_times(part) for part in parts])


def _times(weight: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda h: h.matmul(weight)


def in_step_order(x: Tensor, backwards: tuple[bool, ...]) -> Tensor:
    """Return x (D, T, ...) with the time axis of backward directions reversed."""
    if len(set(backwards)) == 1:
        return x.flip(1) if backwards[0] else x
    parts = [x[i : i + 1].flip(1) if b else x[i : i + 1] for i, b in enumerate(backwards)]
    return Tensor.cat(parts, axis=0)


def _for_all_directions(
    ctx: NodeContext, defaults: Sequence[str], directions: int
) -> list[Activation]:
    """Return functions of (D, N, H) for all directions; gates clip their input if requested."""
    chosen = gate_activations(ctx, defaults, directions)
    if same_in_all_directions(ctx, len(defaults)):
        chosen = chosen[:1]
    limit = ctx.attribute("clip")
    bound = None if limit is None else float(limit)
    # Like ONNX Runtime, do not clip the input of LSTM's third function, the cell state.
    bounds = (bound, bound, None)
    return [_joined([c[i] for c in chosen], bounds[i]) for i in range(len(defaults))]


def _joined(functions: list[Activation], limit: float | None) -> Activation:
    def apply(x: Tensor) -> Tensor:
        bounded = x if limit is None else x.clip(-limit, limit)
        if len(functions) == 1:
            return functions[0](bounded)
        return Tensor.cat([f(bounded[i : i + 1]) for i, f in enumerate(functions)], axis=0)

    return apply


# --- RNN, GRU and LSTM: one step of each. Formulas: ONNX operator documentation ---------------

States = tuple[Tensor, ...]
# Activations of the gates, the candidate and the output.
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

    By default the reset gate is applied before the product with R, which takes two kernels per
    step. With linear_before_reset=1 it is applied after the product, which takes one.
    """
    layer = read_layer(ctx, 3, ("Sigmoid", "Tanh"))
    by_z, by_r, by_h = layer.weights.gates
    gate, candidate = layer.activations
    after = bool(ctx.integer("linear_before_reset", 0))
    bias = _both_biases(layer)
    if after:  # the reset gate also multiplies the bias of the hidden state's product
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
    """Return the peephole weights (D, 1, H) of gates i, o and f; empty if there are none."""
    ctx, hidden = layer.ctx, layer.hidden
    if not ctx.has(7):
        return []
    given = wide(ctx.tensor(7))
    if given.shape != (len(layer.backwards), 3 * hidden):
        raise ModelError(
            f"expected P of shape {(len(layer.backwards), 3 * hidden)}, found {given.shape}"
        )
    return [given[:, i * hidden : (i + 1) * hidden].unsqueeze(1) for i in range(3)]
