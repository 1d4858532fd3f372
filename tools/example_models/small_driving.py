"""Builds small networks for every revision of the driving models: real interfaces, little work.

A revision is one published version of the models' inputs and outputs. A network has one
convolutional stem over both camera views, one position-weighted sum over each history, and a linear
layer for each head. Every output therefore depends on every row of every input. If a model keeps
its histories itself, queues precede the same network.
"""

import math
import zlib
from collections.abc import Mapping

import numpy as np
import onnx

from runtime.format.interfaces import ModelPart
from tools.example_models.graph import ConvSpec, GraphBuilder, Value
from tools.example_models.outputs import head, head_weight, model_metadata

# --- Histories inside a model: queues as inputs, and as outputs `next_<name>` -----------------
#
# A queue drops its oldest row and appends the newest; the network reads samples of the result. In
# revisions whose histories are kept by the host or the device, models have no such states.

FRAMES = ("warped", "new_img")  # inputs with the newest frame of both cameras, (2, 6, 128, 256)
STEP = 4  # queue rows per sample: frames at 20 Hz, context at 5 Hz


def is_state(name: str) -> bool:
    """Whether an input is a state, which the model returns updated as `next_<name>`."""
    return name.startswith("state_")


class Histories:
    """The queues of one model; `states` maps the name of each state to its input tensor."""

    def __init__(self, g: GraphBuilder, states: Mapping[str, Value]) -> None:
        self.states = dict(states)
        self._g = g
        self._next: dict[str, Value] = {}

    def views(self, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """Return the network's inputs, named as in models that keep no histories."""
        seen = dict(inputs)
        for name, queue in self.states.items():
            kind = _kind(name)
            if kind == "prev_feat":
                continue
            newest = self._newest(kind, inputs)
            full = self._push(queue, newest)
            self._next[name] = full
            seen[kind] = self._samples(kind, full)
        if self.states:
            for name in (*FRAMES, "desire"):
                seen.pop(name, None)
        return seen

    def following(self, outputs: Value, slices: Mapping[str, tuple[int, int]]) -> dict[str, Value]:
        """Return the outputs `next_<name>` in the order of the states.

        `outputs` (1, width) contains the hidden state; `slices` maps heads to (start, stop).
        """
        found = {}
        for name, state in self.states.items():
            if _kind(name) == "prev_feat":
                start, stop = slices["hidden_state"]
                found[f"next_{name}"] = self._slice(outputs, (start, stop, 1), 1, state.shape)
            else:
                found[f"next_{name}"] = self._next[name]
        return found

    def _newest(self, kind: str, inputs: Mapping[str, Value]) -> Value:
        """Return the row to append to a queue: (1, ...)."""
        g = self._g
        if kind == "desire_pulse":
            return g.node("Reshape", (inputs["desire"], g.ints(1, 1, 8)), (1, 1, 8))
        if kind == "features_buffer":
            feature = next(v for n, v in self.states.items() if _kind(n) == "prev_feat")
            width = feature.shape[-1]
            return g.node("Reshape", (feature, g.ints(1, 1, width)), (1, 1, width))
        frames = next(v for n, v in inputs.items() if n in FRAMES)
        index = 1 if kind == "big_img" else 0
        return self._slice(frames, (index, index + 1, 1), 0, (1, *frames.shape[1:]))

    def _push(self, queue: Value, newest: Value) -> Value:
        rows = queue.shape[0]
        kept = self._slice(queue, (1, rows, 1), 0, (rows - 1, *queue.shape[1:]))
        return self._g.node("Concat", (kept, newest), queue.shape, axis=0)

    def _samples(self, kind: str, queue: Value) -> Value:
        g, rows, rest = self._g, queue.shape[0], queue.shape[1:]
        if kind == "desire_pulse":
            groups = (rows // STEP, STEP, *rest)
            x = g.node("Reshape", (queue, g.ints(*groups)), groups)
            x = g.node("ReduceMax", (x,), (groups[0], *rest), axes=[1], keepdims=0)
            shape: tuple[int, ...] = (1, groups[0], rest[-1])
        else:
            samples = math.ceil(rows / STEP)
            x = self._slice(queue, (0, rows, STEP), 0, (samples, *rest))
            images = kind in ("img", "big_img")
            shape = (1, samples * rest[0], *rest[1:]) if images else (1, samples, rest[-1])
        return g.node("Reshape", (x, g.ints(*shape)), shape)

    def _slice(
        self, x: Value, bounds: tuple[int, int, int], axis: int, shape: tuple[int, ...]
    ) -> Value:
        g = self._g
        start, stop, step = bounds
        return g.node("Slice", (x, g.ints(start), g.ints(stop), g.ints(axis), g.ints(step)), shape)


def _kind(name: str) -> str:
    """Return the history input that a queue provides, or "prev_feat" for the previous features."""
    if "prev_feat" in name:
        return "prev_feat"
    if "feat" in name:
        return "features_buffer"
    if "desire" in name:
        return "desire_pulse"
    return "big_img" if "big_img" in name else "img"


TRUNK = 64
VIEW_SHAPE = (1, 12, 128, 256)
STEM = (
    ConvSpec(8, kernel=5, stride=4),
    ConvSpec(24, kernel=5, stride=4),
    ConvSpec(48, kernel=3, stride=2),
)
# Factors that scale inputs to a magnitude of about 1, so each affects the outputs. Speed and delays
# are divided by typical values, curvatures by that of a gentle bend. Features need no factor.
SCALES: Mapping[str, tuple[float, ...]] = {
    "lateral_control_params": (1 / 15, 1 / 0.3),
    "action_t": (1 / 0.3, 1 / 0.5),
    "prev_desired_curv": (1 / 3e-4,),
}
# Weight of each input in the trunk, relative to the views. Histories of features and curvatures
# feed the model's output back; weights well below 1 let differences decay.
SHARES: Mapping[str, float] = {"features_buffer": 0.3, "prev_desired_curv": 0.2, "desire": 1.5}


def build_part(interface: str, part: ModelPart, pad: int, seed: int) -> tuple[onnx.ModelProto, int]:
    """Return one model of a revision and its multiply-adds per run.

    `pad` is the number of padding values after the last head; -1 means that the slice `pad` is
    another name for the whole output. Equal seeds give equal bytes.
    """
    # The role is part of the seed: weights of equal names differ between models of a revision.
    g = GraphBuilder(part.role, zlib.crc32(f"{part.role} {seed}".encode()))
    inputs = {
        name: g.input(name, shape, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
        for name, (shape, kind) in part.inputs.items()
    }
    kinds = {name: kind for name, (_, kind) in part.inputs.items()}
    histories = Histories(g, {n: v for n, v in inputs.items() if is_state(n)})
    seen = histories.views({n: v for n, v in inputs.items() if not is_state(n)})
    trunk = _trunk(g, {n: _as_float(g, v, kinds.get(n, "float32")) for n, v in seen.items()})
    outputs = _heads(g, trunk, part, max(pad, 0))
    following = histories.following(outputs, part.slices)
    slices = {name: slice(*bounds) for name, bounds in part.slices.items()}
    if pad:
        slices["pad"] = slice(0, None) if pad < 0 else slice(-pad, None)
    model = g.finish(
        {"outputs": outputs} | following,
        model_metadata(f"example-{interface}-{part.role}/seed-{seed}", slices),
        {
            f"next_{name}": onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kinds[name]))
            for name in histories.states
        },
    )
    return model, g.multiply_adds


def _as_float(g: GraphBuilder, x: Value, kind: str) -> Value:
    if x.shape[-2:] == VIEW_SHAPE[-2:] or kind != "float32":
        return g.node("Cast", (x,), x.shape, to=onnx.TensorProto.FLOAT)
    return x


def _trunk(g: GraphBuilder, seen: Mapping[str, Value]) -> Value:
    """Return the (1, TRUNK) features that all heads read, with about unit variance."""
    views = [v for v in seen.values() if v.shape == VIEW_SHAPE]
    parts = [_view_features(g, views)] if views else []
    for name, value in seen.items():
        if value.shape != VIEW_SHAPE:
            with g.scope(name):
                parts.append(_input_features(g, name, value))
    total = parts[0]
    for part in parts[1:]:
        total = g.elementwise("Add", total, part)
    with g.scope("norm"):
        scale, bias = g.weight("weight", np.ones(TRUNK)), g.weight("bias", np.zeros(TRUNK))
        return g.node("LayerNormalization", (total, scale, bias), total.shape, axis=-1)


def _view_features(g: GraphBuilder, views: list[Value]) -> Value:
    """Return the (1, TRUNK) features of the views, whose values are 0..255."""
    scaled = []
    for view in views:
        x = g.elementwise("Sub", view, g.scalar(127.5))
        scaled.append(g.elementwise("Div", x, g.scalar(63.75)))
    x = g.node("Concat", scaled, (1, 24, *VIEW_SHAPE[2:]), axis=1)
    for index, spec in enumerate(STEM):
        with g.scope(f"stem.{index}"):
            x = g.gelu(g.conv(x, spec))
    with g.scope("stem.fc"):
        return g.random_gemm(g.flatten(x), TRUNK, gain=1.5)


def _input_features(g: GraphBuilder, name: str, x: Value) -> Value:
    """Return the (1, TRUNK) features of a vector (1, N) or a history (1, rows, ..., N).

    Histories begin with the oldest row.
    """
    share = SHARES.get("desire" if name.startswith("desire") else name, 0.5)
    if name in SCALES:
        x = g.elementwise("Mul", x, g.constant(np.array(SCALES[name], np.float32)))
    if len(x.shape) == 2:
        return g.random_gemm(x, TRUNK, gain=share)
    rows, width = math.prod(x.shape[1:-1]), x.shape[-1]
    if len(x.shape) > 3:
        x = g.node("Reshape", (x, g.ints(1, rows, width)), (1, rows, width))
    y = g.node("Tanh", (g.linear(x, TRUNK),), (1, rows, TRUNK))
    # A pulse in a single row must have an effect, so these histories are not scaled by length.
    length = 1.0 if name.startswith("desire") else math.sqrt(rows)
    y = g.elementwise("Mul", y, g.normal("position", (1, rows, TRUNK), 2.0 * share / length))
    return g.node("ReduceSum", (y, g.ints(1)), (1, TRUNK), keepdims=0)


def _heads(g: GraphBuilder, trunk: Value, part: ModelPart, pad: int) -> Value:
    """Return the output vector: one linear layer per head, then `pad` zeros."""
    found = []
    for name, (start, stop) in part.slices.items():
        with g.scope(f"heads.{name}"):
            if name == "hidden_state":
                found.append(g.random_gemm(trunk, stop - start))
                continue
            bias, modes = head(name, stop - start)
            found.append(g.gemm(trunk, head_weight(modes, TRUNK, g.rng("weight")), bias))
    if pad:
        found.append(g.constant(np.zeros((1, pad), np.float32)))
    return g.node("Concat", found, (1, part.width), axis=1)
