"""The driving program of the 2025 split interface: warp, queues, vision, policy, as one graph.

    frames, transforms -> warp -> image queues -> vision -> feature queue -+
                                     desire -> desire queue -> pooled -----+-> policy

Queues live on the device (states). Lengths and sampling are those of a 20 Hz loop with 5 Hz
context: images 200 ms apart, 25 features and desires over 5 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.cache.schedules import EntryGraph
from scheduler.driving.warp import BILINEAR, Camera, model_image
from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.node import Node
from scheduler.ir.origin import Origins
from scheduler.onnx_import import ImportedModel, OnnxModel, import_model
from scheduler.onnx_import.binding import declared
from scheduler.tensor.tensor import Tensor

RUN_HZ, CONTEXT_HZ = 20, 5
TEMPORAL_SKIP = RUN_HZ // CONTEXT_HZ  # frames between samples of a history
CONTEXT_LENGTH = 25  # samples of feature and desire history
IMAGE_QUEUE = TEMPORAL_SKIP + 1  # newest frame and the one 200 ms before it
HISTORY = TEMPORAL_SKIP * CONTEXT_LENGTH
IMAGE_SHAPE = (6, 128, 256)  # 4 planes of luma, U, V: half the resolution of the view
FEATURE_WIDTH = 512  # of the vision model's hidden state
DESIRE_WIDTH = 8  # one hot
# The policy's inputs, by the names exporters have used.
DESIRE_NAMES = ("desire_pulse", "desire")


@dataclass(frozen=True, slots=True)
class States:
    """The memory of the device between frames, shared by all entry points.

    Attributes:
        road, wide: image queues (5, 6, 128, 256) uint8, oldest first.
        features: (100, 512) float32, oldest first.
        desire: (100, 8) float32, oldest first.
    """

    road: Tensor
    wide: Tensor
    features: Tensor
    desire: Tensor


def make_states() -> States:
    """Return fresh states (zeros at reset)."""
    return States(
        Tensor.state("road_images", (IMAGE_QUEUE, *IMAGE_SHAPE), dt.uint8),
        Tensor.state("wide_images", (IMAGE_QUEUE, *IMAGE_SHAPE), dt.uint8),
        Tensor.state("features", (HISTORY, FEATURE_WIDTH)),
        Tensor.state("desire", (HISTORY, DESIRE_WIDTH)),
    )


@dataclass(frozen=True, slots=True)
class _Frame:
    """Inputs of one entry point, the queues after they were pushed, and what each is called."""

    inputs: dict[str, Tensor]
    road: Tensor
    wide: Tensor
    desire: Tensor
    origins: Origins


def _push(queue: Tensor, newest: Tensor) -> Tensor:
    """Return the queue after dropping its oldest row and appending one; written back at the end."""
    return queue.assign(Tensor.cat([queue[1:], newest.unsqueeze(0)], 0))


def _frame(camera: Camera, states: States) -> _Frame:
    inputs: dict[str, Tensor] = {}
    for name in ("road", "wide"):
        inputs[f"{name}_frame"] = Tensor.input(f"{name}_frame", (camera.payload_bytes,), dt.uint8)
        inputs[f"{name}_transform"] = Tensor.input(f"{name}_transform", (3, 3))
    inputs["desire"] = Tensor.input("desire", (DESIRE_WIDTH,))
    origins = Origins()
    buffers = (*inputs.values(), states.road, states.wide, states.desire, states.features)
    origins.name((t.node for t in buffers), ())
    queues = {}
    geometry = Tensor.weight([camera.width, camera.height, camera.stride, camera.uv_offset])
    for name, state in (("road", states.road), ("wide", states.wide)):
        image = model_image(
            inputs[f"{name}_frame"], inputs[f"{name}_transform"], geometry, BILINEAR
        )
        origins.name([image.node], (f"warp/{name}",))
        queues[name] = _push(state, image)
        origins.name([queues[name].node], (f"queue/{name}",))
    desire = _push(states.desire, inputs["desire"])
    origins.name([desire.node], ("queue/desire",))
    return _Frame(inputs, queues["road"], queues["wide"], desire, origins)


def run_graph(vision: OnnxModel, policy: OnnxModel, camera: Camera, states: States) -> EntryGraph:
    """Return what a whole frame computes for one camera size.

    Outputs are `vision_outputs` (1, width) and `policy_outputs` (1, width), float32, raw.

    Raises:
        ModelError: the models do not have the inputs and outputs of the 2025 split interface.
    """
    frame = _frame(camera, states)
    seen = _run_vision(vision, frame)
    feature = _hidden_state(seen)
    features = _push(states.features, feature)
    frame.origins.name([features.node], ("queue/features",))
    traffic = Tensor.input("traffic_convention", (1, 2))
    frame.inputs["traffic_convention"] = traffic
    decided = _run_policy(policy, frame, features, traffic)
    outputs = {
        "vision_outputs": _only_output(seen).node,
        "policy_outputs": _only_output(decided).node,
    }
    writes = [frame.road.node, frame.wide.node, frame.desire.node, features.node]
    inputs = [t.node for t in frame.inputs.values()]
    return EntryGraph(outputs, writes, inputs, origins=frame.origins)


def prepare_graph(camera: Camera, states: States) -> EntryGraph:
    """Return what only advances image and desire queues (after dropped frames)."""
    frame = _frame(camera, states)
    writes: list[Node] = [frame.road.node, frame.wide.node, frame.desire.node]
    inputs = [t.node for t in frame.inputs.values()]
    return EntryGraph({}, writes, inputs, origins=frame.origins)


def _run_vision(vision: OnnxModel, frame: _Frame) -> ImportedModel:
    names = [v.name for v in vision.inputs]
    if len(names) != 2 or sum("big" in n for n in names) != 1:
        raise ModelError(
            f"{vision.name}: expected two image inputs, one with 'big' in its name; found {names}"
        )
    images = {}
    for name in names:
        queue = frame.wide if "big" in name else frame.road
        pair = queue[0::TEMPORAL_SKIP]
        images[name] = pair.reshape((1, 2 * IMAGE_SHAPE[0], *IMAGE_SHAPE[1:]))
    frame.origins.name((t.node for t in images.values()), ("vision/images",))
    return import_model(vision, _as_declared(vision, images), origins=frame.origins)


def _run_policy(
    policy: OnnxModel, frame: _Frame, features: Tensor, traffic: Tensor
) -> ImportedModel:
    names = [v.name for v in policy.inputs]
    desire_name = next((n for n in DESIRE_NAMES if n in names), None)
    wanted = {desire_name, "traffic_convention", "features_buffer"}
    if desire_name is None or set(names) != wanted:
        raise ModelError(
            f"{policy.name}: expected inputs desire_pulse, traffic_convention, features_buffer; "
            f"found {names}"
        )
    groups = frame.desire.reshape(CONTEXT_LENGTH, TEMPORAL_SKIP, DESIRE_WIDTH)
    desire = groups.max(1).unsqueeze(0)
    frame.origins.name([desire.node], ("queue/desire",))
    history = features[TEMPORAL_SKIP - 1 :: TEMPORAL_SKIP].unsqueeze(0)
    frame.origins.name([history.node], ("queue/features",))
    given = {desire_name: desire, "traffic_convention": traffic, "features_buffer": history}
    return import_model(policy, _as_declared(policy, given), origins=frame.origins)


def _as_declared(model: OnnxModel, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return inputs in the element types of the model: exporters also write float16 and float32."""
    types = {}
    for value in model.inputs:
        _, types[value.name] = declared(value, f'{model.name}: input "{value.name}"')
    return {name: tensor.cast(types[name]) for name, tensor in given.items()}


def _only_output(model: ImportedModel) -> Tensor:
    if len(model.outputs) != 1:
        found = list(model.outputs)
        raise ModelError(f"{model.source.name}: expected exactly one output, found {found}")
    output = next(iter(model.outputs.values()))
    if output.ndim != 2 or output.shape[0] != 1:
        raise ModelError(f"{model.source.name}: expected output (1, width), found {output.shape}")
    return output.float()


def _hidden_state(vision: ImportedModel) -> Tensor:
    bounds = vision.metadata.output_slices.get("hidden_state")
    if bounds is None or bounds[1] - bounds[0] != FEATURE_WIDTH:
        found = sorted(vision.metadata.output_slices)
        raise ModelError(
            f"{vision.source.name}: expected output_slices with a {FEATURE_WIDTH} wide "
            f"hidden_state in its metadata; found {found or 'none'}"
        )
    return _only_output(vision)[0, bounds[0] : bounds[1]]


def driving_metadata(
    vision: ImportedModel, policy: ImportedModel, cameras: Mapping[str, Camera]
) -> dict[str, object]:
    """Return the manifest's metadata: what the daemon needs to know about the models."""
    models = {}
    for role, model in (("vision", vision), ("policy", policy)):
        models[role] = {
            "checkpoint": model.metadata.checkpoint,
            "inputs": {
                n: {"shape": list(t.shape), "dtype": t.dtype.name} for n, t in model.inputs.items()
            },
            "output_width": _only_output(model).shape[1],
            "output_slices": {n: list(s) for n, s in model.metadata.output_slices.items()},
        }
    return {
        "interface": "split-2025",
        "run_hz": RUN_HZ,
        "context_hz": CONTEXT_HZ,
        "image_mode": "bilinear-fixed",
        "drop_policy": "skip",
        "cameras": [
            {
                "width": c.width,
                "height": c.height,
                "stride": c.stride,
                "uv_offset": c.uv_offset,
                "payload_bytes": c.payload_bytes,
            }
            for c in cameras.values()
        ],
        "models": models,
    }
