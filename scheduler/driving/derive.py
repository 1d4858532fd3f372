"""What names, shapes and slices of driving models say about their interface.

features_buffer (1, 25, 512), hidden_state in an earlier model
    -> 25 samples, 4 frames apart, the newest that of the frame itself; images 4 frames apart
"""

from __future__ import annotations

from collections.abc import Sequence

from runtime.format.interfaces import HOST_INPUTS, HistoryRule, ImageRule, Interface, ModelPart
from scheduler.driving.declare import Rules
from scheduler.driving.revisions import Revision, RevisionModel

DESIRE_NAMES = ("desire_pulse", "desire")
# A model that sees so many rows or more sees all frames of 5 s; with fewer it sees each fourth.
CONSECUTIVE = 99
SAMPLE_STEP = 4  # 20 Hz frames, 5 Hz context


def derive(
    name: str, reason: str, models: Sequence[ModelPart], states: Sequence[str], rules: Rules
) -> Interface:
    """Return the interface of models that run in this order under these rules.

    `reason` says how revision `name` was chosen; `states` are inputs that a model hands on by
    itself.
    """
    inputs = {n: shape for part in models for n, (shape, _) in part.inputs.items()}
    desire = _samples(inputs, DESIRE_NAMES)
    features = _samples(inputs, ("features_buffer",))
    curvature = _samples(inputs, ("prev_desired_curv",))
    own = _sees_own_feature(models)
    heads = {name: (stop - start) for p in models for name, (start, stop) in p.slices.items()}
    return Interface(
        name=name,
        reason=reason,
        models=tuple(models),
        image=ImageRule(rules.image_mode, 0 if states else _step(features)),
        desire=None if states else _history(desire, current=True),
        features=None if states else _history(features, current=own, newest=own),
        curvature=_history(curvature, current=False, scale=rules.curvature_scale),
        states=tuple(states),
        host_inputs=tuple(n for n in HOST_INPUTS if n in inputs),
        drop_policy=rules.drop_policy,
        action=rules.action,
        meta=heads.get("meta", 0),
        lane_change=rules.lane_change,
        big=rules.big,
    )


def example_parts(revision: Revision) -> tuple[ModelPart, ...]:
    """Return the models of a revision as an exporter would have written them."""
    return tuple(_example_part(model) for model in revision.models)


def _example_part(model: RevisionModel) -> ModelPart:
    inputs = {}
    for key, shape in model.inputs.items():
        name = key.removesuffix("?").split("|")[0]
        kind = model.images if is_image(name) else "float32"
        inputs[name] = (shape, kind)
    slices, start = {}, 0
    for head, width in model.heads:
        slices[head] = (start, start + width)
        start += width
    return ModelPart(
        model.role, f"example-{model.role}", model.width, slices, inputs | dict(model.states)
    )


def is_image(name: str) -> bool:
    """Whether an input is a camera view, or the newest frames of both."""
    return name.removeprefix("big_") in ("img", "input_imgs") or name in ("warped", "new_img")


def _samples(inputs: dict[str, tuple[int, ...]], names: Sequence[str]) -> int | None:
    """Return the length of the history that an input holds; None where there is no such input."""
    shape = next((inputs[n] for n in names if n in inputs), None)
    return shape[1] if shape is not None and len(shape) > 1 else None


def _step(length: int | None) -> int:
    return 1 if length is not None and length >= CONSECUTIVE else SAMPLE_STEP


def _history(
    length: int | None, *, current: bool, newest: bool = True, scale: float = 1.0
) -> HistoryRule | None:
    return None if length is None else HistoryRule(length, _step(length), current, newest, scale)


def _sees_own_feature(models: Sequence[ModelPart]) -> bool:
    """Whether `hidden_state` is there before the model that sees the features runs."""
    return not any(
        "features_buffer" in part.inputs and "hidden_state" in part.slices for part in models
    )
