"""Compares models with the revisions of the table, several together or a single one.

`ordered` assigns roles to the models of a driving program. `known_model` identifies a single file
for `modeld inspect` and for advice. A revision is one known generation of driving models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.driving.derive import HEADS, HIDDEN_STATE, OFF_POLICY_HEADS, width_text
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
    fits,
    shape_text,
)
from scheduler.driving.revisions import Revision, RevisionModel, load_monitoring, load_revisions
from scheduler.errors import ModelError
from scheduler.onnx_import import OnnxModel

MAX_MODELS = 3
TITLES = {
    SUPERCOMBO: "a supercombo",
    VISION: "a vision model",
    POLICY: "a policy",
    MONITORING: "a driver monitoring model",
    RECURRENT: "a supercombo with a recurrent state (until 2022)",
    NAVIGATION: "a supercombo with navigation (2023)",
    "": "a model of another kind",
}
PLAIN = "compile it with: modeld compile --plain"
NEEDS_POLICY = "a policy with the inputs desire_pulse, traffic_convention, features_buffer"
NEEDS_VISION = "a vision model with two image inputs"
COUNTS = {2: "two", 3: "three"}
# The meaning of inputs by name, which is the same in all revisions.
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


def ordered(
    models: Sequence[ModelFacts], declared: Revision | None = None
) -> list[tuple[str, ModelFacts]]:
    """Return roles and models in the order in which they run in a frame.

    `declared` helps to name missing models. Raises ModelError if the models are not a complete
    driving model; it names the kind of each and the missing ones.
    """
    if not models or len(models) > MAX_MODELS:
        raise ModelError(f"a driving model is 1 to {MAX_MODELS} ONNX files, found {len(models)}")
    _check_kinds(models)
    by_role = {
        role: [model for model in models if model.role == role]
        for role in (SUPERCOMBO, VISION, POLICY)
    }
    both = ", ".join(model.name for model in models)
    if by_role[SUPERCOMBO]:
        if len(models) > 1:
            name = by_role[SUPERCOMBO][0].name
            raise ModelError(
                f"{name}: found a supercombo, which is complete; compile it alone: "
                f"modeld compile {name} -o OUT.pkl"
            )
        return [(SUPERCOMBO, models[0])]
    visions, policies = by_role[VISION], by_role[POLICY]
    if len(visions) > 1 and policies:
        raise ModelError(f"{both}: {_found(visions)}; expected one")
    if not policies:
        raise ModelError(f"{both}: {_found(visions)}; {_missing(VISION, declared)}")
    if not visions:
        raise ModelError(f"{both}: {_found(policies)}; {_missing(POLICY, declared)}")
    if len(policies) == 1:
        return [(VISION, visions[0]), (POLICY, policies[0])]
    off = [model for model in policies if any(head in model.slices for head in OFF_POLICY_HEADS)]
    if len(off) != 1:
        found = _found(policies)
        if found.startswith("found"):
            found += f", {'both' if off else 'neither'} with heads such as {OFF_POLICY_HEADS[0]}"
        raise ModelError(
            f"{both}: {found}; expected an off-policy, with the heads "
            f"{', '.join(OFF_POLICY_HEADS)}, and an on-policy without them"
        )
    on = next(model for model in policies if model is not off[0])
    return [(VISION, visions[0]), (OFF_POLICY, off[0]), (ON_POLICY, on)]


def input_problems(wanted: RevisionModel, found: ModelFacts) -> list[str]:
    """Return the differences between a model's inputs and a revision's, a phrase each."""
    problems = []
    left = [name for name in found.shapes if name not in found.states]
    for key, shape in wanted.inputs.items():
        names = key.removesuffix("?").split("|")
        name = next((n for n in names if n in left), None)
        if name is not None:
            left.remove(name)
            if not fits(found.shapes[name], shape):
                problems.append(
                    f'input "{name}": expected {shape_text(shape)}, found '
                    f"{shape_text(found.shapes[name])}"
                )
        elif not key.endswith("?"):
            problems.append(f'input "{" or ".join(names)}" {shape_text(shape)}: is missing')
    problems += [f'input "{name}": is not known' for name in left]
    if bool(wanted.states) != bool(found.states):
        expected, states = ("some", "none") if wanted.states else ("none", list(found.states))
        problems.append(f"states with outputs next_NAME: expected {expected}, found {states}")
    return problems


def head_differences(wanted: RevisionModel, found: ModelFacts) -> Iterator[tuple[str, str]]:
    """Yield (head, phrase) for heads whose presence or width differs from a revision."""
    heads = dict(wanted.heads)
    for head, width in heads.items():
        bounds = found.slices.get(head)
        if bounds is None:
            yield head, f"head {head}: expected {width} values, is missing"
        elif bounds[1] - bounds[0] != width:
            yield head, f"head {head}: expected {width} values, found {bounds[1] - bounds[0]}"
    for head in found.slices:
        if head not in heads and (head in HEADS or head == HIDDEN_STATE):
            yield head, f"head {head}: expected none in the {wanted.role} model"


def wanted_shape(wanted: RevisionModel, name: str) -> tuple[int, ...]:
    """Return the shape of an input in a revision; () if it has no such input."""
    for key, shape in wanted.inputs.items():
        if name in key.removesuffix("?").split("|"):
            return shape
    return ()


def same_roles(revision: Revision, roles: Sequence[str]) -> bool:
    """Whether the models of a revision have these roles."""
    return [model.role for model in revision.models] == list(roles)


def _check_kinds(models: Sequence[ModelFacts]) -> None:
    for model in models:
        title = TITLES[model.role]
        if model.role == MONITORING:
            raise ModelError(
                f"{model.name}: expected driving models, found {title}, which is complete; "
                f"compile it alone: modeld compile {model.name} -o OUT.pkl"
            )
        if model.role in (RECURRENT, NAVIGATION):
            raise ModelError(
                f"{model.name}: found {title}, which no driving program supports; {PLAIN} "
                f"{model.name} -o OUT.pkl"
            )
        if not model.role:
            raise ModelError(
                f"{model.name}: expected a vision model, a policy or a supercombo, found {title} "
                f"with the inputs {list(model.shapes)}; {PLAIN} {model.name} -o OUT.pkl"
            )


def _found(models: Sequence[ModelFacts]) -> str:
    """Return the phrase that describes models of one role."""
    title = TITLES[models[0].role]
    if len(models) == 1:
        return f"found {title}"
    noun = title.removeprefix("a ")
    digests = {model.model.sha256 for model in models}
    if len(digests) == 1 and digests != {""}:
        return f"the same {noun} was given {'twice' if len(models) == 2 else 'three times'}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"found {COUNTS[len(models)]} {plural}"


def _missing(role: str, declared: Revision | None) -> str:
    """Return the phrase for the models missing next to one of the role VISION or POLICY."""
    if declared is None:
        return f"expected also {NEEDS_POLICY if role == VISION else NEEDS_VISION}"
    if declared.models[0].role == SUPERCOMBO:
        return f"expected the supercombo of {declared.name}"
    others = [m for m in declared.models if (m.role == VISION) != (role == VISION)]
    return "expected also " + " and ".join(_expected(m) for m in others) + f" for {declared.name}"


def _expected(wanted: RevisionModel) -> str:
    names = [key.split("|")[0] for key in wanted.inputs if not key.endswith("?")]
    return f"the {wanted.role} model with the inputs {', '.join(names)}"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model with its recognized kind."""

    facts: ModelFacts  # facts from the file
    title: str  # title for messages
    # revisions with such a model (same heads, or else same inputs), newest last
    revisions: tuple[str, ...]
    inputs: dict[str, str]  # input name -> meaning, in the order of the file
    differences: tuple[str, ...]  # differences from the nearest revision, one phrase each
    advice: str  # the command that compiles it

    @property
    def is_half(self) -> bool:
        """Whether it needs further models to drive."""
        return self.facts.role in (VISION, POLICY)


def known_model(model: OnnxModel) -> KnownModel | None:
    """Return the kind of a driving model, by names, shapes, types and slices; None if unknown."""
    facts = facts_of(model)
    if not facts.role:
        return None
    title, advice = _KINDS[facts.role]
    revisions, differences = _nearest(facts)
    inputs = {n: MEANINGS.get(n, "state" if n in facts.states else "unknown") for n in facts.shapes}
    return KnownModel(facts, title, revisions, inputs, (*facts.problems, *differences), advice)


def _nearest(facts: ModelFacts) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the revisions with such a model, and its differences from the nearest one."""
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
    """Yield differences of heads; a width that no revision has is compared with all widths."""
    named = {name for name, _ in wanted.heads}
    for head, text in head_differences(wanted, facts):
        start, stop = facts.slices.get(head, (0, 0))
        allowed = HEADS.get(head, ()) if head in named else ()
        if allowed and stop - start not in allowed:
            yield width_text(head, allowed, stop - start if head in facts.slices else None)
        else:
            yield text
