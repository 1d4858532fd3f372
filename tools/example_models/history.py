"""Histories inside a model: queues that it takes as inputs and hands on as outputs `next_<name>`.

A queue drops its oldest row and appends the newest; the network sees samples of the result. For
revisions whose histories the host or the device keeps there are no states, and nothing is added.
"""

import math
from collections.abc import Mapping

from tools.example_models.graph import GraphBuilder, Value

FRAMES = ("warped", "new_img")  # names of the newest frames of both cameras, (2, 6, 128, 256)
STEP = 4  # 20 Hz frames, 5 Hz context


def is_state(name: str) -> bool:
    """Whether an input is handed on by the model itself."""
    return name.startswith("state_")


class Histories:
    """The queues of one model.

    Attributes:
        states: name of each queue or kept value -> input.
    """

    def __init__(self, g: GraphBuilder, states: Mapping[str, Value]) -> None:
        self.states = dict(states)
        self._g = g
        self._next: dict[str, Value] = {}

    def views(self, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """Return what the network sees under the names of models without histories.

        Args:
            inputs: name -> value of all inputs that are no states.
        """
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

        Args:
            outputs: (1, width), which holds the hidden state.
            slices: head -> bounds.
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
        """Return the row that is appended: (1, ...)."""
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
    """Return the input of a model without histories that a queue stands for; or "prev_feat"."""
    if "prev_feat" in name:
        return "prev_feat"
    if "feat" in name:
        return "features_buffer"
    if "desire" in name:
        return "desire_pulse"
    return "big_img" if "big_img" in name else "img"
