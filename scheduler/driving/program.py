"""Builds the driving program as graphs, from the interface of its models.

    frames, geometries, transforms -> warp -> image queues --+
                                   desire -> desire history -+-> models in run order -> outputs
                  features, curvatures, states of models ---+         |
                              ^----------------------------------------+

Queues and histories stay on the device between frames. `Interface` describes all differences
between generations of models. A model sees only some rows of a history:

    oldest row ... newest row    push: drop the oldest, append the new one
    first, first + step, ...     the rows that the model sees
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from runtime.format.interfaces import DESIRE_WIDTH, HOST_INPUTS, HistoryRule, Interface, ModelPart
from scheduler.driving.derive import DESIRE_NAMES
from scheduler.driving.warp import model_image
from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.dtype import DType
from scheduler.ir.origin import Origins
from scheduler.onnx_import import ImportedModel, OnnxModel, import_model
from scheduler.onnx_import.binding import declared
from scheduler.onnx_import.metadata import SLICED_OUTPUT
from scheduler.schedule_cache import EntryGraph
from scheduler.tensor.tensor import Tensor

VIEWS = ("road", "wide")
IMAGE_SHAPE = (6, 128, 256)  # 4 planes of luma, U, V: half the resolution of the view
FEATURES_INPUT = "features_buffer"
CURVATURES_INPUT = "prev_desired_curv"
# Inputs of models that are camera views, by the names that exporters have used.
IMAGE_INPUTS = {"img": "road", "input_imgs": "road", "big_img": "wide", "big_input_imgs": "wide"}
NEWEST_INPUTS = ("warped", "new_img")  # (2, 6, 128, 256): road, wide
HIDDEN_STATE, CURVATURE = "hidden_state", "desired_curvature"
# Bytes of a padded NV12 frame of 3840 x 2160, the default for the largest frame of a program.
DEFAULT_CAPACITY = 3840 * (2176 + 1080)


@dataclass(frozen=True, slots=True)
class Memory:
    """The states of all entry points; zeros at reset."""

    images: Mapping[str, Tensor]  # View -> queue (gap + 1, 6, 128, 256) uint8, oldest first, or {}
    desire: Tensor | None  # (frames, 8) float32, oldest first; None if the model keeps it
    features: Tensor | None  # (frames, *row) float32, oldest first; rows as in the model's input
    curvature: Tensor | None  # the same, for past curvatures
    own: Mapping[str, Tensor]  # ONNX input -> state that the model feeds back to itself

    @property
    def tensors(self) -> list[Tensor]:
        """All states."""
        histories = [t for t in (self.desire, self.features, self.curvature) if t is not None]
        return [*self.images.values(), *histories, *self.own.values()]


def _make_memory(interface: Interface, models: Sequence[OnnxModel]) -> Memory:
    """Return new states; models (in run order) give the element types of their own states.

    Raises ModelError if no input defines the rows of a history, or if a state belongs to no model.
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
    """Return the queue without its oldest row and with a new one; it is written back at the end."""
    row = newest.unsqueeze(0)
    return queue.assign(Tensor.cat([queue[1:], row], 0) if queue.shape[0] > 1 else row)


def _images_seen(queue: Tensor) -> Tensor:
    """Return the oldest and the newest image of a queue, (1, 12, 128, 256) uint8."""
    pair = queue[0 :: queue.shape[0] - 1]
    return pair.reshape((1, 2 * IMAGE_SHAPE[0], *IMAGE_SHAPE[1:]))


def rows_seen(history: Tensor, rule: HistoryRule) -> Tensor:
    """Return the samples of a history that a model sees, (1, length, *row)."""
    return history[rule.first :: rule.step].unsqueeze(0)


def _strongest_seen(history: Tensor, rule: HistoryRule) -> Tensor:
    """Return the maximum of each `step` rows, (1, length, *row), so that no pulse is lost."""
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
    return Tensor.state(name, part.inputs[name][0], _input_types(model)[name])


def _input_types(model: OnnxModel) -> dict[str, DType]:
    """Return the element type of each input: exporters use float16, float32 and uint8."""
    return {v.name: declared(v, f'{model.name}: input "{v.name}"')[1] for v in model.inputs}


@dataclass(slots=True)
class _Frame:
    """One entry point under construction."""

    # inputs of the program, in calling order
    inputs: dict[str, Tensor] = field(default_factory=dict)
    # Value of each model input in this frame.
    given: dict[str, Tensor] = field(default_factory=dict)
    writes: list[Tensor] = field(default_factory=list)  # states after this frame
    origins: Origins = field(default_factory=Origins)  # names of nodes

    def take(
        self,
        name: str,
        shape: Sequence[int],
        dtype: dt.DType = dt.float32,
        *,
        partial: bool = False,
    ) -> Tensor:
        """Return a new input of the program; if `partial`, a run may give only its first bytes."""
        self.inputs[name] = Tensor.input(name, shape, dtype, partial=partial)
        self.origins.name([self.inputs[name].node], ())
        return self.inputs[name]

    def push(self, name: str, queue: Tensor, newest: Tensor) -> Tensor:
        """Return a queue with its newest row; the queue is stored at the end of the frame."""
        pushed = push(queue, newest)
        self.writes.append(pushed)
        self.origins.name([pushed.node], (f"queue/{name}",))
        return pushed

    def give(self, names: Sequence[str], value: Tensor, origin: str = "") -> None:
        """Provide a value to models under these input names."""
        if origin:
            self.origins.name([value.node], (origin,))
        self.given |= dict.fromkeys(names, value)

    def graph(self, outputs: dict[str, Tensor]) -> EntryGraph:
        """Return the graph of the entry point."""
        return EntryGraph(
            {name: tensor.node for name, tensor in outputs.items()},
            [tensor.node for tensor in self.writes],
            [tensor.node for tensor in self.inputs.values()],
            origins=self.origins,
        )


def driving_entries(
    interface: Interface, models: Sequence[OnnxModel], capacity: int
) -> dict[str, EntryGraph]:
    """Return the entry "run", and "prepare" if dropped frames only advance queues.

    Models are in run order, and frames have at most `capacity` bytes. Raises ModelError if a model
    does not match the interface; it names the model and what is missing.
    """
    memory = _make_memory(interface, models)
    entries = {"run": run_graph(interface, models, capacity, memory)}
    if interface.drop_policy == "skip":
        entries["prepare"] = prepare_graph(interface, capacity, memory)
    return entries


def prepare_graph(interface: Interface, capacity: int, memory: Memory) -> EntryGraph:
    """Return a graph that only advances image and desire queues; raise ModelError without them."""
    if not memory.images or memory.desire is None:
        raise ModelError(
            f'interface {interface.name}: drop policy "skip" needs queues of images and desires on '
            'the device, but the model keeps them itself; declare drop_policy = "run"'
        )
    return _frame(interface, capacity, memory).graph({})


def run_graph(
    interface: Interface, models: Sequence[OnnxModel], capacity: int, memory: Memory
) -> EntryGraph:
    """Return the graph of a complete frame.

    Outputs are the raw `<role>_outputs` (1, width) float32 of each model. Raises ModelError if a
    model does not match the interface; it names the model and what is missing.
    """
    frame = _frame(interface, capacity, memory)
    for name in interface.host_inputs:
        frame.give([name], frame.take(name, HOST_INPUTS[name]))
    _give_histories(frame, interface, memory)
    outputs: dict[str, Tensor] = {}
    for part, model in zip(interface.models, models, strict=True):
        outputs[f"{part.role}_outputs"] = _run_model(frame, part, model, memory)
        _remember_features(frame, interface, memory, part, outputs)
    _remember_curvature(frame, interface, memory, outputs)
    return frame.graph(outputs)


def _frame(interface: Interface, capacity: int, memory: Memory) -> _Frame:
    """Return a frame with new images and desire pushed, the beginning of all entry points."""
    frame = _Frame()
    frame.origins.name((state.node for state in memory.tensors), ())
    frames = {
        name: frame.take(f"{name}_frame", (capacity,), dt.uint8, partial=True) for name in VIEWS
    }
    sizes = {name: frame.take(f"{name}_geometry", (4,), dt.int32) for name in VIEWS}
    matrices = {name: frame.take(f"{name}_transform", (3, 3)) for name in VIEWS}
    desire = frame.take("desire", (DESIRE_WIDTH,))
    newest = {}
    for name in VIEWS:
        image = model_image(frames[name], matrices[name], sizes[name], interface.image.mode)
        frame.origins.name([image.node], (f"warp/{name}",))
        newest[name] = image
        if name in memory.images:
            queue = frame.push(name, memory.images[name], image)
            inputs = [i for i, view in IMAGE_INPUTS.items() if view == name]
            frame.give(inputs, _images_seen(queue), f"images/{name}")
    if not memory.images:
        # Stored once; a queue inside the model would otherwise sample the camera again for each
        # row.
        pair = Tensor.stack([newest[name].contiguous() for name in VIEWS])
        frame.give(NEWEST_INPUTS, pair, "images")
    if interface.desire is None or memory.desire is None:
        frame.give(DESIRE_NAMES, desire)
    else:
        history = frame.push("desire", memory.desire, desire)
        frame.give(DESIRE_NAMES, _strongest_seen(history, interface.desire), "queue/desire")
    return frame


def _give_histories(frame: _Frame, interface: Interface, memory: Memory) -> None:
    """Provide histories that are pushed only after the run, and the models' own states."""
    for name, rule, state in (
        (FEATURES_INPUT, interface.features, memory.features),
        (CURVATURES_INPUT, interface.curvature, memory.curvature),
    ):
        if rule is not None and state is not None and not rule.current:
            frame.give([name], rows_seen(state, rule))
    for name, state in memory.own.items():
        frame.give([name], state)


def _run_model(frame: _Frame, part: ModelPart, model: OnnxModel, memory: Memory) -> Tensor:
    """Return the output vector (1, width) of a model, and store its own states."""
    types = _input_types(model)
    unknown = [name for name in types if name not in frame.given]
    if unknown:
        raise ModelError(
            f"{model.name}: no value for the inputs {unknown} when the {part.role} model runs; "
            f"there are {sorted(frame.given)}; declare the interface that the models have"
        )
    given = {name: frame.given[name].cast(dtype) for name, dtype in types.items()}
    ran = import_model(model, given, origins=frame.origins)
    for name in types:
        if name in memory.own:
            frame.writes.append(memory.own[name].assign(_next_state(ran, name)))
    return _vector(ran, part)


def _next_state(ran: ImportedModel, name: str) -> Tensor:
    before, after = ran.inputs[name], ran.outputs.get(f"next_{name}")
    if after is None or (after.shape, after.dtype) != (before.shape, before.dtype):
        found = "no such output" if after is None else f"{after.dtype} {after.shape}"
        raise ModelError(
            f'{ran.source.name}: state "{name}": expected an output "next_{name}" {before.dtype} '
            f"{before.shape}, found {found}"
        )
    return after


def _vector(ran: ImportedModel, part: ModelPart) -> Tensor:
    """Return the output that slices refer to: the only one, or the one named "outputs"."""
    only = next(iter(ran.outputs.values())) if len(ran.outputs) == 1 else None
    vector = ran.outputs.get(SLICED_OUTPUT, only)
    if vector is None or vector.shape != (1, part.width):
        found = list(ran.outputs) if vector is None else vector.shape
        raise ModelError(
            f'{ran.source.name}: expected one output, or one called "{SLICED_OUTPUT}", of shape '
            f"(1, {part.width}); found {found}"
        )
    return vector.float()


def _remember_features(
    frame: _Frame,
    interface: Interface,
    memory: Memory,
    part: ModelPart,
    outputs: dict[str, Tensor],
) -> None:
    """Push the hidden state after the first model that has one; later models can see it."""
    rule, state = interface.features, memory.features
    source = next((p for p in interface.models if HIDDEN_STATE in p.slices), None)
    if rule is None or state is None:
        return
    if source is None:
        raise ModelError(
            f"interface {interface.name}: features: expected a model with the output slice "
            f"{HIDDEN_STATE}, found none; the history of features is made of it"
        )
    if part is not source:
        return
    start, stop = source.slices[HIDDEN_STATE]
    row = state.shape[1:]
    feature = outputs[f"{part.role}_outputs"][0, start:stop]
    if feature.size != state[0].size:
        raise ModelError(
            f"{part.role} model: {HIDDEN_STATE}: expected {state[0].size} values, a row {row} of "
            f"{FEATURES_INPUT}; found {feature.size}"
        )
    history = frame.push("features", state, feature.reshape(row))
    if rule.current:
        frame.give([FEATURES_INPUT], rows_seen(history, rule), "queue/features")


def _remember_curvature(
    frame: _Frame, interface: Interface, memory: Memory, outputs: dict[str, Tensor]
) -> None:
    """Push the model's own curvature, the mean of its head, after the run."""
    rule, state = interface.curvature, memory.curvature
    if rule is None or state is None:
        return
    if CURVATURE not in interface.heads:
        raise ModelError(
            f"interface {interface.name}: curvature: expected a model with the output slice "
            f"{CURVATURE}, found none; the history of curvatures is made of it"
        )
    role, start, stop = interface.heads[CURVATURE]
    # A head has means, then logs of deviations; without deviations it is as wide as a row.
    width = state[0].size
    if stop - start not in (width, 2 * width):
        raise ModelError(
            f"{role} model: {CURVATURE}: expected {width} or {2 * width} values, for a row of "
            f"{CURVATURES_INPUT} of {width}; found {stop - start}"
        )
    mean = outputs[f"{role}_outputs"][0, start : start + width].reshape(state.shape[1:])
    frame.push("curvature", state, mean if rule.scale == 1.0 else mean * rule.scale)
