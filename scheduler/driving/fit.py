"""Which roles models have together, and how far they are from a revision of the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    fits,
    shape_text,
)
from scheduler.driving.heads import HEADS, HIDDEN_STATE, SEES
from scheduler.driving.revisions import Revision, RevisionModel
from scheduler.errors import ModelError

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


def ordered(
    models: Sequence[ModelFacts], declared: Revision | None = None
) -> list[tuple[str, ModelFacts]]:
    """Return roles and models in the order in which they run in a frame.

    `declared` says which models are missing. Raises ModelError if they are no complete driving
    model; says what each is and what is missing.
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
                f"{name}: found a supercombo, which has no second half; compile it alone: "
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
    off = [model for model in policies if any(head in model.slices for head in SEES)]
    if len(off) != 1:
        found = _found(policies)
        if found.startswith("found"):
            found += f", {'both' if off else 'neither'} with heads such as {SEES[0]}"
        raise ModelError(
            f"{both}: {found}; expected an off-policy, with the heads {', '.join(SEES)}, and an "
            "on-policy without them"
        )
    on = next(model for model in policies if model is not off[0])
    return [(VISION, visions[0]), (OFF_POLICY, off[0]), (ON_POLICY, on)]


def input_problems(wanted: RevisionModel, found: ModelFacts) -> list[str]:
    """Return how the inputs of a model differ from those of a revision, a phrase each."""
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
    """Yield (head, phrase) for heads whose place or width is not that of a revision."""
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
    """Return the shape that a revision has for an input; () for one that it does not know."""
    for key, shape in wanted.inputs.items():
        if name in key.removesuffix("?").split("|"):
            return shape
    return ()


def same_roles(revision: Revision, roles: Sequence[str]) -> bool:
    """Whether a revision is made of models of these roles."""
    return [model.role for model in revision.models] == list(roles)


def _check_kinds(models: Sequence[ModelFacts]) -> None:
    for model in models:
        title = TITLES[model.role]
        if model.role == MONITORING:
            raise ModelError(
                f"{model.name}: expected driving models, found {title}, which has no second half; "
                f"compile it alone: modeld compile {model.name} -o OUT.pkl"
            )
        if model.role in (RECURRENT, NAVIGATION):
            raise ModelError(
                f"{model.name}: found {title}, which no driving program runs; {PLAIN} "
                f"{model.name} -o OUT.pkl"
            )
        if not model.role:
            raise ModelError(
                f"{model.name}: expected a vision model, a policy or a supercombo, found {title} "
                f"with the inputs {list(model.shapes)}; {PLAIN} {model.name} -o OUT.pkl"
            )


def _found(models: Sequence[ModelFacts]) -> str:
    """Return what was found, for models of one role."""
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
    """Return which models are expected beside one of the role VISION or POLICY."""
    if declared is None:
        return f"expected also {NEEDS_POLICY if role == VISION else NEEDS_VISION}"
    if declared.models[0].role == SUPERCOMBO:
        return f"expected the supercombo of {declared.name}"
    others = [m for m in declared.models if (m.role == VISION) != (role == VISION)]
    return "expected also " + " and ".join(_expected(m) for m in others) + f" for {declared.name}"


def _expected(wanted: RevisionModel) -> str:
    names = [key.split("|")[0] for key in wanted.inputs if not key.endswith("?")]
    return f"the {wanted.role} model with the inputs {', '.join(names)}"
