"""Which interface the models of a driving program have, and why: docs/interfaces.md.

roles by names of inputs -> revision declared, or the one that fits -> rules -> `derive`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from runtime.format.interfaces import Interface, ModelPart
from scheduler.driving.declaration import OPTION, Declaration, check_name, driving_declaration
from scheduler.driving.declare import Rules, Table, make_rules, merged
from scheduler.driving.derive import derive
from scheduler.driving.facts import ModelFacts, facts_of
from scheduler.driving.fit import (
    head_differences,
    input_problems,
    ordered,
    same_roles,
    wanted_shape,
)
from scheduler.driving.heads import head_problems
from scheduler.driving.revisions import Revision, RevisionModel, load_revisions
from scheduler.errors import ModelError
from scheduler.onnx_import import OnnxModel
from scheduler.onnx_import.binding import declared as declared_tensor

SEE = "see docs/formats/driving-models.md"
DECLARE = 'declare another with --interface NAME, or interface = "NAME" in a TOML beside a model'

ALONE = "without driving conventions: modeld compile --plain"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A revision whose models have the roles of ours, and how ours differ from it."""

    revision: Revision
    inputs: tuple[str, ...]
    heads: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Choice:
    """The revision that is taken, why, and what else would be as good."""

    candidate: _Candidate
    reason: str
    note: str = ""


def recognise_driving(
    models: Sequence[OnnxModel], declared: str | None = None
) -> tuple[Interface, tuple[OnnxModel, ...], tuple[str, ...]]:
    """Return the interface of models, the models in the order in which they run, and notes.

    The revision is the declared one, else that of a TOML beside a model, else that of a known
    checkpoint, else the newest one that fits (or the preferred one); a note says if others with
    different rules fit, too. Raises ModelError, with all that is wrong at once, if the one to three
    models are no complete driving model, contradict what is declared, or lack what the daemon
    needs.
    """
    facts = [facts_of(model) for model in models]
    revisions = load_revisions()
    if declared is not None:
        check_name(facts, declared, OPTION, revisions)
    roles = ordered(facts, None if declared is None else revisions[declared])
    # In run order: what is said does not depend on the order of the files.
    said = driving_declaration([found for _, found in roles], declared, revisions)
    choice = _choose(roles, said, revisions)
    revision = choice.candidate.revision
    rules = _rules(revision, said)
    parts = [
        _part(role, found, wanted)
        for (role, found), wanted in zip(roles, revision.models, strict=True)
    ]
    problems = _problems(roles, choice.candidate, head_problems(parts, rules.action), said)
    if problems:
        names = ", ".join(found.name for _, found in roles)
        raise ModelError(
            f"{names}: taken for {revision.name} ({choice.reason}): {'; '.join(problems)}; {SEE}"
            + ("" if said.by_user else f"; {DECLARE}")
            + (f"; {ALONE}" if len(roles) == 1 else "")
        )
    states = [name for _, found in roles for name in found.states]
    interface = derive(revision.name, choice.reason + said.rules_text, parts, states, rules)
    notes = [note for _, found in roles for note in found.model.notes]
    if choice.note:
        notes.append(choice.note)
    return interface, tuple(found.model for _, found in roles), tuple(notes)


def _choose(
    roles: Sequence[tuple[str, ModelFacts]], said: Declaration, revisions: Mapping[str, Revision]
) -> _Choice:
    names = [role for role, _ in roles]
    if said.name is not None and not same_roles(revisions[said.name], names):
        expected = [model.role for model in revisions[said.name].models]
        others = [name for name, revision in revisions.items() if same_roles(revision, names)]
        raise ModelError(
            f"{', '.join(found.name for _, found in roles)}: interface {said.name} ({said.reason}) "
            f"has the models {', '.join(expected)}; found {', '.join(names)}; declare one that has "
            f"these: {', '.join(others)}"
        )
    all_candidates = [
        _candidate(revision, roles)
        for revision in revisions.values()
        if same_roles(revision, names) and said.name in (None, revision.name)
    ]
    if said.name is not None:
        return _Choice(all_candidates[0], said.reason)
    by_inputs = [c for c in all_candidates if not c.inputs]
    exact = [c for c in by_inputs if not c.heads]
    if exact:
        return _best(exact)
    if by_inputs:
        # Among those of the same inputs the one with the fewest other heads.
        fewest = min(len(c.heads) for c in by_inputs)
        return _best([c for c in by_inputs if len(c.heads) == fewest], heads_differ=True)
    best = min(all_candidates, key=lambda c: (len(c.inputs), len(c.heads)))
    return _Choice(best, "the nearest one by its inputs")


def _best(candidates: Sequence[_Candidate], *, heads_differ: bool = False) -> _Choice:
    """Return the preferred or newest of revisions that fit; candidates are in order of time."""
    chosen = next((c for c in candidates if c.revision.preferred), candidates[-1])
    name = chosen.revision.name
    others = [c.revision.name for c in candidates if c.revision.rules != chosen.revision.rules]
    reason = "the only one whose inputs and heads fit"
    if len(candidates) > 1:
        which = "preferred" if chosen.revision.preferred else "newest"
        reason = f"the {which} one whose inputs and heads fit"
    if not others and not heads_differ:
        return _Choice(chosen, reason)
    if heads_differ:
        reason = reason.replace("inputs and heads fit", "inputs fit")
    if others:
        reason += f"; {', '.join(others)} would fit, too"
    note = f"interface: assumed {name}, {reason}"
    if heads_differ:
        note += f"; where it differs: {'; '.join(chosen.heads.values())}"
    return _Choice(chosen, reason, f"{note}; {DECLARE}")


def _candidate(revision: Revision, roles: Sequence[tuple[str, ModelFacts]]) -> _Candidate:
    inputs: list[str] = []
    heads: dict[str, str] = {}
    for wanted, (_, found) in zip(revision.models, roles, strict=True):
        inputs += [f"{found.name}: {text}" for text in input_problems(wanted, found)]
        for head, text in head_differences(wanted, found):
            heads[head] = f"{found.name}: {text}"
    return _Candidate(revision, tuple(inputs), heads)


def _problems(
    roles: Sequence[tuple[str, ModelFacts]],
    candidate: _Candidate,
    needed: Mapping[str, str],
    said: Declaration,
) -> list[str]:
    """Return all that is wrong; heads only count as other ones where an interface is declared."""
    slices = [f"{found.name}: {text}" for _, found in roles for text in found.problems]
    heads = {**needed, **candidate.heads} if said.name is not None else needed
    return [*slices, *candidate.inputs, *heads.values()]


def _rules(revision: Revision, said: Declaration) -> Rules:
    if not said.rules:
        return revision.rules
    rules = merged(asdict(revision.rules), said.rules)
    return make_rules(rules, Table(rules, said.rules_from, "rules"))


def _part(role: str, found: ModelFacts, wanted: RevisionModel) -> ModelPart:
    inputs = {}
    for value in found.model.inputs:
        where = f'{found.name}: input "{value.name}"'
        shape, kind = declared_tensor(value, where)
        sizes = wanted_shape(wanted, value.name)
        if len(sizes) != len(shape):
            sizes = (1,) * len(shape)
        known = tuple(
            size if size is not None else full for (_, size), full in zip(shape, sizes, strict=True)
        )
        inputs[value.name] = (known, kind.name)
    return ModelPart(role, found.checkpoint, found.width or 0, dict(found.slices), inputs)
