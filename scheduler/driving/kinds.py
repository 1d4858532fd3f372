"""What a single ONNX file is among driving models, for `modeld inspect` and for advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from scheduler.driving.facts import (
    MONITORING,
    NAVIGATION,
    OFF_POLICY,
    ON_POLICY,
    POLICY,
    RECURRENT,
    SUPERCOMBO,
    VISION,
    ModelFacts,
    facts_of,
)
from scheduler.driving.fit import head_differences, input_problems
from scheduler.driving.heads import HEADS, width_text
from scheduler.driving.revisions import RevisionModel, load_monitoring, load_revisions
from scheduler.onnx_import import OnnxModel

# What an input is for, by name. Names have one meaning in all revisions.
MEANINGS: Final[Mapping[str, str]] = {
    "action_t": "delays of steering and acceleration",
    "big_img": "wide camera, two frames of 6 channels",
    "big_input_imgs": "wide camera, two frames of 6 channels",
    "calib": "calibration angles of the camera",
    "desire": "desires, one of 8 in each row",
    "desire_pulse": "desires at their rising edge, one of 8 in each row",
    "features_buffer": "features of past frames",
    "img": "road camera, two frames of 6 channels",
    "initial_state": "recurrent state",
    "input_img": "luma of the driver camera",
    "input_imgs": "road camera, two frames of 6 channels",
    "lateral_control_params": "speed and steering delay",
    "nav_features": "features of the map",
    "nav_instructions": "navigation instructions",
    "new_img": "newest frames, road and wide",
    "prev_desired_curv": "curvatures of past frames",
    "traffic_convention": "side of the road, one of 2",
    "warped": "newest frames, road and wide",
}
_ALONE = "compile it with: modeld compile MODEL.onnx -o OUT.pkl"
_PLAIN = "compile it with: modeld compile --plain MODEL.onnx -o OUT.pkl"
_PAIR = (
    "compile vision and policies together with: modeld compile VISION.onnx POLICY.onnx -o OUT.pkl"
)
_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    SUPERCOMBO: ("supercombo", _ALONE),
    VISION: ("vision half of a driving model", _PAIR),
    POLICY: ("policy half of a driving model", _PAIR),
    MONITORING: ("driver monitoring", _ALONE),
    RECURRENT: ("supercombo with a recurrent state (until 2022)", _PLAIN),
    NAVIGATION: ("supercombo with navigation (2023)", _PLAIN),
}


@dataclass(frozen=True, slots=True)
class KnownModel:
    """What a model was recognised as."""

    facts: ModelFacts  # what it says of itself
    title: str  # for people
    revisions: tuple[str, ...]  # that have such a model (same heads, or else inputs), newest last
    inputs: dict[str, str]  # input name -> what it is for, in the order of the file
    differences: tuple[str, ...]  # from the nearest revision, one phrase each
    advice: str  # the command that compiles it

    @property
    def is_half(self) -> bool:
        """Whether it needs further models to drive."""
        return self.facts.role in (VISION, POLICY)


def known_model(model: OnnxModel) -> KnownModel | None:
    """Return what a model is among driving models, by names, shapes, types and slices, or None."""
    facts = facts_of(model)
    if not facts.role:
        return None
    title, advice = _KINDS[facts.role]
    revisions, differences = _nearest(facts)
    inputs = {n: MEANINGS.get(n, "state" if n in facts.states else "unknown") for n in facts.shapes}
    return KnownModel(facts, title, revisions, inputs, (*facts.problems, *differences), advice)


def _nearest(facts: ModelFacts) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the revisions that have such a model, and how it differs from the nearest."""
    roles = (POLICY, OFF_POLICY, ON_POLICY) if facts.role == POLICY else (facts.role,)
    if facts.role == MONITORING:
        rows = [(name, r.model) for name, r in load_monitoring().items()]
    else:
        rows = [(name, m) for name, r in load_revisions().items() for m in r.models]
    ranked = []
    for name, model in rows:
        if model.role not in roles:
            continue
        inputs = input_problems(model, facts)
        named = model.sliced or bool(facts.slices)
        heads = list(_head_texts(model, facts)) if named else []
        ranked.append(((len(inputs), len(heads)), name, (*inputs, *heads)))
    if not ranked:
        return (), ()
    least = min(rank for rank, _, _ in ranked)
    nearest = [(name, texts) for rank, name, texts in ranked if rank == least]
    fitting = least[0] == 0
    return tuple(dict.fromkeys(name for name, _ in nearest)) if fitting else (), nearest[-1][1]


def _head_texts(wanted: RevisionModel, facts: ModelFacts) -> Iterator[str]:
    """Yield how heads differ; of a width that no revision has, all that it may be."""
    named = {name for name, _ in wanted.heads}
    for head, text in head_differences(wanted, facts):
        start, stop = facts.slices.get(head, (0, 0))
        allowed = HEADS.get(head, ()) if head in named else ()
        if allowed and stop - start not in allowed:
            yield width_text(head, allowed, stop - start if head in facts.slices else None)
        else:
            yield text
