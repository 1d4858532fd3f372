"""Derives the interface of driving models from their names, shapes and slices, and checks heads.

features_buffer (1, 25, 512), hidden_state in an earlier model
    -> 25 samples, 4 frames apart, the newest from the current frame; images 4 frames apart

A head is a named slice of a model's output vector. `HEADS` has the possible widths of each head,
`REQUIRED` the heads that the daemon needs. docs/formats/driving-models.md describes the values;
tests compare its table and the daemon's parser with `HEADS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Final

from runtime.format.interfaces import (
    HOST_INPUTS,
    META_WIDTHS,
    ActionRule,
    HistoryRule,
    ImageRule,
    Interface,
    ModelPart,
)
from scheduler.driving.revisions import Revision, RevisionModel, Rules

DESIRE_NAMES = ("desire_pulse", "desire")
# A model with a history of at least this many rows sees all frames of 5 s; with fewer rows, it sees
# every fourth frame.
CONSECUTIVE = 99
SAMPLE_STEP = 4  # 20 Hz frames, 5 Hz context

# A head has means, then logs of deviations. A second width is a mixture of hypotheses: 5 for plans
# (5 x (990 + 1)), 2 for leads (2 x (48 + 3)).
HEADS: Final[Mapping[str, tuple[int, ...]]] = {
    "plan": (990, 4955),
    "lane_lines": (528,),
    "lane_lines_prob": (8,),
    "road_edges": (264,),
    "lead": (144, 102),
    "lead_prob": (3,),
    "desire_state": (8,),
    "desire_pred": (32,),
    "meta": META_WIDTHS,
    "pose": (12,),
    "wide_from_device_euler": (6,),
    "road_transform": (12,),
    "sim_pose": (12,),
    "desired_curvature": (2,),
    "planplus": (990,),
    "action": (4,),
}
REQUIRED: Final = tuple(HEADS)[:12]
HIDDEN_STATE: Final = "hidden_state"
PAD: Final = "pad"  # a second name for the values of another head, or a name for unused values
# heads that distinguish an off-policy from an on-policy
OFF_POLICY_HEADS: Final = ("lane_lines", "lead", "road_edges")


def derive(
    name: str, reason: str, models: Sequence[ModelPart], states: Sequence[str], rules: Rules
) -> Interface:
    """Return the interface of models that run in this order under these rules.

    `reason` says how revision `name` was chosen. `states` are inputs that a model feeds back to
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
    """Return the models of a revision as an exporter would write them."""
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
    """Whether an input is a camera view, or the newest frames of both views."""
    return name.removeprefix("big_") in ("img", "input_imgs") or name in ("warped", "new_img")


def _samples(inputs: dict[str, tuple[int, ...]], names: Sequence[str]) -> int | None:
    """Return the length of the history that an input holds; None without such an input."""
    shape = next((inputs[n] for n in names if n in inputs), None)
    return shape[1] if shape is not None and len(shape) > 1 else None


def _step(length: int | None) -> int:
    return 1 if length is not None and length >= CONSECUTIVE else SAMPLE_STEP


def _history(
    length: int | None, *, current: bool, newest: bool = True, scale: float = 1.0
) -> HistoryRule | None:
    return None if length is None else HistoryRule(length, _step(length), current, newest, scale)


def _sees_own_feature(models: Sequence[ModelPart]) -> bool:
    """Whether `hidden_state` is computed before the model with the features input runs."""
    return not any(
        "features_buffer" in part.inputs and HIDDEN_STATE in part.slices for part in models
    )


def head_problems(models: Sequence[ModelPart], action: ActionRule) -> dict[str, str]:
    """Return the problems with the heads of models (in run order), head -> phrase.

    If two models have a head, the later one counts. Unused heads may have any width; heads used by
    `action` are required.
    """
    widths = {n: stop - start for m in models for n, (start, stop) in m.slices.items()}
    expected = {name: allowed for name, allowed in HEADS.items() if name in widths}
    needed = [*REQUIRED, *(r for r in (action.lateral, action.longitudinal) if r in HEADS)]
    if any("prev_desired_curv" in m.inputs for m in models):
        needed.append("desired_curvature")
    expected |= {name: HEADS[name] for name in needed}
    row = next((m.inputs["features_buffer"] for m in models if "features_buffer" in m.inputs), None)
    if row is not None:
        expected[HIDDEN_STATE] = (prod(row[0][2:]),)
    problems = {}
    for name, allowed in expected.items():
        why = " (a row of features_buffer)" if name == HIDDEN_STATE else ""
        if widths.get(name) not in allowed:
            problems[name] = width_text(name, allowed, widths.get(name), why)
    return problems


def width_text(name: str, allowed: Sequence[int], found: int | None, why: str = "") -> str:
    """Return the phrase about a head of wrong width; `found` is None for a missing head."""
    wanted = f"head {name}: expected {' or '.join(map(str, allowed))} values{why}"
    return f"{wanted}, is missing" if found is None else f"{wanted}, found {found}"


def overlaps(slices: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return a phrase for each pair of overlapping heads of one model; `pad` may overlap."""
    ordered = sorted((bounds, name) for name, bounds in slices.items() if name != PAD)
    return [
        f"heads {first} [{a}, {b}) and {second} [{c}, {d}) overlap"
        for ((a, b), first), ((c, d), second) in pairwise(ordered)
        if c < b
    ]
