"""Recognizes the interface of the models of a driving program, see docs/interfaces.md.

roles by names of inputs -> revision declared, or the one that fits -> rules -> `derive`

A revision is declared by `--interface`, else by a TOML next to a model (`vision.toml` next to
`vision.onnx`), else by the model's checkpoint. A TOML can also change rules:

    interface = "split-2025-07-02"
    [rules.action]
    lat_smooth_s = 0.2
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from runtime.format.interfaces import Interface, ModelPart
from scheduler.driving.derive import derive, head_problems
from scheduler.driving.facts import ModelFacts, facts_of
from scheduler.driving.fit import (
    head_differences,
    input_problems,
    ordered,
    same_roles,
    wanted_shape,
)
from scheduler.driving.revisions import (
    RULES,
    Revision,
    RevisionModel,
    Rules,
    RuleTable,
    Table,
    check_rules,
    load_monitoring,
    load_revisions,
    make_rules,
    merged,
    read_table,
)
from scheduler.errors import ModelError
from scheduler.onnx_import import OnnxModel
from scheduler.onnx_import.binding import declared as declared_tensor

OPTION: Final = "declared by --interface"
SEE = "see docs/formats/driving-models.md"
DECLARE = 'declare another with --interface NAME, or interface = "NAME" in a TOML next to a model'
ALONE = "without driving conventions: modeld compile --plain"
CHECKPOINTS: Final = Path(__file__).with_name("checkpoints.toml")


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A revision with the same roles as our models, and the differences between them."""

    revision: Revision
    inputs: tuple[str, ...]
    heads: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Choice:
    """The chosen revision, the reason, and a note about equally good ones."""

    candidate: _Candidate
    reason: str
    note: str = ""


def recognise_driving(
    models: Sequence[OnnxModel], declared: str | None = None
) -> tuple[Interface, tuple[OnnxModel, ...], tuple[str, ...]]:
    """Return the interface of models, the models in run order, and notes.

    The revision is the declared one, else that of a TOML next to a model, else that of a known
    checkpoint, else the newest one that fits (or the preferred one). A note says if others with
    different rules would also fit. Raises ModelError, with all problems in one message, if the
    models are not a complete driving model of one to three files, contradict the declaration, or
    lack something that the daemon needs.
    """
    facts = [facts_of(model) for model in models]
    revisions = load_revisions()
    if declared is not None:
        _check_name(facts, declared, OPTION, revisions)
    roles = ordered(facts, None if declared is None else revisions[declared])
    # In run order, so messages do not depend on the order of the files.
    given = _driving_declaration([found for _, found in roles], declared, revisions)
    choice = _choose(roles, given, revisions)
    revision = choice.candidate.revision
    rules = _rules(revision, given)
    parts = [
        _part(role, found, wanted)
        for (role, found), wanted in zip(roles, revision.models, strict=True)
    ]
    problems = _problems(roles, choice.candidate, head_problems(parts, rules.action), given)
    if problems:
        names = ", ".join(found.name for _, found in roles)
        raise ModelError(
            f"{names}: recognized as {revision.name} ({choice.reason}): "
            f"{'; '.join(problems)}; {SEE}"
            + ("" if given.by_user else f"; {DECLARE}")
            + (f"; {ALONE}" if len(roles) == 1 else "")
        )
    states = [name for _, found in roles for name in found.states]
    interface = derive(revision.name, choice.reason + given.rules_text, parts, states, rules)
    notes = [note for _, found in roles for note in found.model.notes]
    if choice.note:
        notes.append(choice.note)
    return interface, tuple(found.model for _, found in roles), tuple(notes)


def _choose(
    roles: Sequence[tuple[str, ModelFacts]], given: Declaration, revisions: Mapping[str, Revision]
) -> _Choice:
    names = [role for role, _ in roles]
    if given.name is not None and not same_roles(revisions[given.name], names):
        expected = [model.role for model in revisions[given.name].models]
        others = [name for name, revision in revisions.items() if same_roles(revision, names)]
        raise ModelError(
            f"{', '.join(found.name for _, found in roles)}: interface {given.name} "
            f"({given.reason}) has the models {', '.join(expected)}; found {', '.join(names)}; "
            f"declare one that has these: {', '.join(others)}"
        )
    all_candidates = [
        _candidate(revision, roles)
        for revision in revisions.values()
        if same_roles(revision, names) and given.name in (None, revision.name)
    ]
    if given.name is not None:
        return _Choice(all_candidates[0], given.reason)
    by_inputs = [c for c in all_candidates if not c.inputs]
    exact = [c for c in by_inputs if not c.heads]
    if exact:
        return _best(exact)
    if by_inputs:
        # Among revisions with the same inputs, prefer those with the fewest different heads.
        fewest = min(len(c.heads) for c in by_inputs)
        return _best([c for c in by_inputs if len(c.heads) == fewest], heads_differ=True)
    best = min(all_candidates, key=lambda c: (len(c.inputs), len(c.heads)))
    return _Choice(best, "the nearest one by its inputs")


def _best(candidates: Sequence[_Candidate], *, heads_differ: bool = False) -> _Choice:
    """Return the preferred or newest of the revisions that fit; candidates are sorted by date."""
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
        reason += f"; {', '.join(others)} would also fit"
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
    given: Declaration,
) -> list[str]:
    """Return all problems; other heads than the revision's count only if one is declared."""
    slices = [f"{found.name}: {text}" for _, found in roles for text in found.problems]
    heads = {**needed, **candidate.heads} if given.name is not None else needed
    return [*slices, *candidate.inputs, *heads.values()]


def _rules(revision: Revision, given: Declaration) -> Rules:
    if not given.rules:
        return revision.rules
    rules = merged(asdict(revision.rules), given.rules)
    return make_rules(rules, Table(rules, given.rules_from, "rules"))


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


# --- Declarations: by an option, a TOML next to a model, or its checkpoint --------------------


@dataclass(frozen=True, slots=True)
class Declaration:
    """A declared interface."""

    name: str | None = None  # name of the revision; None if nothing declares one
    reason: str = ""  # origin of the name, for messages; "" without a name
    # replacements for the revision's rules: a table `[rules]`
    rules: Mapping[str, Any] | None = None
    rules_from: str = ""  # file with the rules; "" without rules
    by_user: bool = False  # whether a person declared the name, not a known checkpoint

    @property
    def rules_text(self) -> str:
        """The addition to a reason that names the rules and their file; "" without rules."""
        if not self.rules:
            return ""
        return f"; rules of {self.rules_from}: {', '.join(_keys(self.rules))}"


def _driving_declaration(
    models: Sequence[ModelFacts], option: str | None, revisions: Mapping[str, Revision]
) -> Declaration:
    """Return the declaration for driving models: see `declaration`, else by checkpoint.

    Raises ModelError as `declaration` does, or if the checkpoints have different interfaces.
    """
    given = declaration(models, option, revisions)
    if given.name is not None:
        return given
    names = _known(models, revisions)
    if len(names) > 1:
        text = "; ".join(f"{name} {how}" for name, how in names.items())
        raise ModelError(
            f"{_names(models)}: the checkpoints are of different interfaces: {text}; declare "
            "one with --interface"
        )
    for name, how in names.items():
        _check_name(models, name, how, revisions)
        return replace(given, name=name, reason=how)
    return given


def declaration(
    models: Sequence[ModelFacts],
    option: str | None,
    revisions: Collection[str],
    known_rules: RuleTable = RULES,
) -> Declaration:
    """Return the declaration for models (in run order): by the option, else by TOML files.

    A TOML next to a model may name one of `revisions` and replace `known_rules`. Raises ModelError
    if a name is no revision, or a file is unreadable, has an unknown key, or contradicts another
    one.
    """
    files = list(_files(models, known_rules))
    rules, rules_from = _declared_rules(files)
    names = {} if option is None else {option: OPTION}
    for file, name, _ in files:
        if name is not None:
            names.setdefault(name, f"declared by {file}")
    if len(names) > 1:
        listed = "; ".join(f"{name} {how}" for name, how in names.items())
        raise ModelError(
            f"{_names(models)}: interfaces contradict each other: {listed}; declare one only"
        )
    for name, how in names.items():
        _check_name(models, name, how, revisions)
        return Declaration(name, how, rules, rules_from, by_user=True)
    return Declaration(None, "", rules, rules_from)


def _check_name(
    models: Sequence[ModelFacts], name: str, how: str, revisions: Collection[str]
) -> None:
    """Raise ModelError for a name that is not in `revisions`, with advice."""
    if name in revisions:
        return
    for kind, others in (
        ("driver monitoring", load_monitoring()),
        ("driving models", load_revisions()),
    ):
        if name in others:
            raise ModelError(
                f"{_names(models)}: interface {name} {how} is of {kind}; expected one of "
                f"{', '.join(revisions)}"
            )
    near = get_close_matches(name, revisions, n=1)
    advice = f", did you mean {near[0]}?" if near else f"; known: {', '.join(revisions)}"
    raise ModelError(f"{_names(models)}: unknown interface {name!r} {how}{advice}")


def _checkpoint_revision(checkpoint: str, revisions: Mapping[str, Revision]) -> str | None:
    """Return the revision of a known checkpoint; None for an unknown one."""
    table = {_plain(key): name for key, name in read_table(CHECKPOINTS).value.items()}
    for name, revision in revisions.items():
        table |= {_plain(f"example-{name}-{model.role}"): name for model in revision.models}
    wanted = f"{_plain(checkpoint)} "
    found = [key for key in table if wanted.startswith(f"{key} ")]
    return table[max(found, key=len)] if found else None


def _known(models: Sequence[ModelFacts], revisions: Mapping[str, Revision]) -> dict[str, str]:
    found: dict[str, str] = {}
    for model in models:
        name = _checkpoint_revision(model.checkpoint, revisions)
        if name is not None:
            how = f"known by the checkpoint {model.checkpoint[:60]!r} of {model.name}"
            found.setdefault(name, how)
    return found


def _files(
    models: Sequence[ModelFacts], known_rules: RuleTable
) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """Yield (file name, interface, rules) for each TOML next to a model."""
    for model in models:
        path = model.model.path and model.model.path.with_suffix(".toml")
        if path is None or not (path.exists() or path.is_symlink()):
            continue
        if not path.is_file():
            kind = "a directory" if path.is_dir() else "a link to nothing or no regular file"
            raise ModelError(
                f"{path.name}: expected a TOML file that declares {model.name}, found {kind}; "
                "remove or rename it"
            )
        table = read_table(path)
        table.only(("interface", "rules"))
        name = table.get("interface", str) if "interface" in table.value else None
        yield path.name, name, check_rules(table.table("rules"), known_rules)


def _declared_rules(
    files: Sequence[tuple[str, str | None, Mapping[str, Any]]],
) -> tuple[dict[str, Any], str]:
    rules: dict[str, Any] = {}
    for file, _, own in files:
        both = merged(rules, own)
        if merged(own, rules) != both:
            raise ModelError(f"{file}: rules: contradict those of the file next to the other model")
        rules = both
    return rules, ", ".join(file for file, _, own in files if own)


def _keys(rules: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Yield the names of rules, such as action.stop."""
    for key, value in rules.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{at}{key}.")
        else:
            yield f"{at}{key}"


def _names(models: Sequence[ModelFacts]) -> str:
    return ", ".join(model.name for model in models)


def _plain(text: str) -> str:
    return " ".join(re.split(r"[-_/ ]+", text.lower()))
