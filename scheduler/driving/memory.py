"""The memory of a driving program: queues and histories that live on the device between frames.

oldest row ... newest row    push: drop the oldest, append the new one
first, first + step, ...     what a model sees of it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from runtime.format.interfaces import DESIRE_WIDTH, HistoryRule, Interface, ModelPart
from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.dtype import DType
from scheduler.onnx_import import OnnxModel
from scheduler.onnx_import.binding import declared
from scheduler.tensor.tensor import Tensor

VIEWS = ("road", "wide")
IMAGE_SHAPE = (6, 128, 256)  # 4 planes of luma, U, V: half the resolution of the view
FEATURES_INPUT = "features_buffer"
CURVATURES_INPUT = "prev_desired_curv"


@dataclass(frozen=True, slots=True)
class Memory:
    """The states of all entry points; zeros at reset."""

    images: Mapping[str, Tensor]  # View -> queue (gap + 1, 6, 128, 256) uint8, oldest first, or {}
    desire: Tensor | None  # (frames, 8) float32, oldest first; None where the model keeps it itself
    features: Tensor | None  # (frames, *row) float32, oldest first; rows as the model's input
    curvature: Tensor | None  # same, of past curvatures
    own: Mapping[str, Tensor]  # ONNX input -> state that the model itself hands on

    @property
    def tensors(self) -> list[Tensor]:
        """All states."""
        histories = [t for t in (self.desire, self.features, self.curvature) if t is not None]
        return [*self.images.values(), *histories, *self.own.values()]


def make_memory(interface: Interface, models: Sequence[OnnxModel]) -> Memory:
    """Return fresh states; models (in run order) give the element types of their own ones.

    Raises ModelError if a history has no input that says what its rows are, or a state is of no
    model.
    """
    gap = interface.image.gap
    queue = (gap + 1, *IMAGE_SHAPE)
    images = {name: Tensor.state(f"{name}_images", queue, dt.uint8) for name in VIEWS if gap}
    desire = interface.desire
    own = {name: _own_state(name, interface.models, models) for name in interface.states}
    return Memory(
        images,
        None if desire is None else Tensor.state("desire", (desire.frames, DESIRE_WIDTH)),
        _history("features", FEATURES_INPUT, interface.features, interface),
        _history("curvature", CURVATURES_INPUT, interface.curvature, interface),
        own,
    )


def push(queue: Tensor, newest: Tensor) -> Tensor:
    """Return the queue after dropping its oldest row and appending one; written back at the end."""
    row = newest.unsqueeze(0)
    return queue.assign(Tensor.cat([queue[1:], row], 0) if queue.shape[0] > 1 else row)


def images_seen(queue: Tensor) -> Tensor:
    """Return the oldest and the newest image of a queue, (1, 12, 128, 256) uint8."""
    pair = queue[0 :: queue.shape[0] - 1]
    return pair.reshape((1, 2 * IMAGE_SHAPE[0], *IMAGE_SHAPE[1:]))


def rows_seen(history: Tensor, rule: HistoryRule) -> Tensor:
    """Return the samples of a history that a model sees, (1, length, *row)."""
    return history[rule.first :: rule.step].unsqueeze(0)


def strongest_seen(history: Tensor, rule: HistoryRule) -> Tensor:
    """Return the maximum of each group of rows, (1, length, *row): no pulse is lost between."""
    row = history.shape[1:]
    return history.reshape((rule.length, rule.step, *row)).max(1).unsqueeze(0)


def _history(
    name: str, input_name: str, rule: HistoryRule | None, interface: Interface
) -> Tensor | None:
    if rule is None:
        return None
    shapes = [part.inputs[input_name][0] for part in interface.models if input_name in part.inputs]
    wanted = (1, rule.length)
    if not shapes or any(shape[:2] != wanted or shape != shapes[0] for shape in shapes):
        found = ", ".join(map(str, shapes)) or "no such input"
        raise ModelError(
            f"interface {interface.name}: {name}: expected an input {input_name} "
            f"(1, {rule.length}, ...), found {found}; declare the interface that the models have"
        )
    row = shapes[0][2:]
    if not prod(row):
        raise ModelError(f"interface {interface.name}: {name}: rows {row} have no elements")
    return Tensor.state(name, (rule.frames, *row))


def _own_state(name: str, parts: Sequence[ModelPart], models: Sequence[OnnxModel]) -> Tensor:
    found = [
        (part, model)
        for part, model in zip(parts, models, strict=True)
        if name in part.inputs and any(v.name == name for v in model.inputs)
    ]
    if len(found) != 1:
        names = [model.name for _, model in found] or "none"
        raise ModelError(f'state "{name}": expected one model with this input, found {names}')
    part, model = found[0]
    return Tensor.state(name, part.inputs[name][0], input_types(model)[name])


def input_types(model: OnnxModel) -> dict[str, DType]:
    """Return the element type of each input: exporters write float16, float32 and uint8."""
    return {v.name: declared(v, f'{model.name}: input "{v.name}"')[1] for v in model.inputs}
