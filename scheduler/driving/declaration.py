"""What is declared of models: by an option, a TOML beside one, or its checkpoint.

`vision.toml` beside `vision.onnx`:

    interface = "split-2025-07-02"
    [rules.action]
    lat_smooth_s = 0.2
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from scheduler.driving.declare import RULES, RuleTable, check_rules, merged, read_table
from scheduler.driving.facts import ModelFacts
from scheduler.driving.revisions import Revision, load_monitoring, load_revisions
from scheduler.errors import ModelError

OPTION: Final = "declared by --interface"
CHECKPOINTS: Final = Path(__file__).with_name("checkpoints.toml")


@dataclass(frozen=True, slots=True)
class Declaration:
    """What is declared."""

    name: str | None = None  # of the revision; None where nothing names one
    reason: str = ""  # who names it, for people; "" for nobody
    rules: Mapping[str, Any] | None = None  # replace those of the revision: a table `[rules]`
    rules_from: str = ""  # file that says so; "" for none
    by_user: bool = False  # whether a person names it, not a known checkpoint

    @property
    def rules_text(self) -> str:
        """What the rules add to a reason: their file and their names; "" for none."""
        if not self.rules:
            return ""
        return f"; rules of {self.rules_from}: {', '.join(_keys(self.rules))}"


def driving_declaration(
    models: Sequence[ModelFacts], option: str | None, revisions: Mapping[str, Revision]
) -> Declaration:
    """Return what is declared of driving models: see `declaration`, else by checkpoint.

    Raises ModelError as `declaration` does, or if the checkpoints are of different interfaces.
    """
    said = declaration(models, option, revisions)
    if said.name is not None:
        return said
    names = _known(models, revisions)
    if len(names) > 1:
        text = "; ".join(f"{name} {how}" for name, how in names.items())
        raise ModelError(
            f"{_names(models)}: the checkpoints are of different interfaces: {text}; declare "
            "one with --interface"
        )
    for name, how in names.items():
        check_name(models, name, how, revisions)
        return replace(said, name=name, reason=how)
    return said


def declaration(
    models: Sequence[ModelFacts],
    option: str | None,
    revisions: Collection[str],
    known_rules: RuleTable = RULES,
) -> Declaration:
    """Return what is declared of models (in run order): by the option, else beside them.

    A file beside them may name one of `revisions` and replace `known_rules`. Raises ModelError if a
    name is no revision, or a file is unreadable, has an unknown key, or contradicts another one.
    """
    files = list(_files(models, known_rules))
    rules, rules_from = _rules(files)
    names = {} if option is None else {option: OPTION}
    for file, name, _ in files:
        if name is not None:
            names.setdefault(name, f"declared by {file}")
    if len(names) > 1:
        said = "; ".join(f"{name} {how}" for name, how in names.items())
        raise ModelError(
            f"{_names(models)}: interfaces contradict each other: {said}; declare one only"
        )
    for name, how in names.items():
        check_name(models, name, how, revisions)
        return Declaration(name, how, rules, rules_from, by_user=True)
    return Declaration(None, "", rules, rules_from)


def check_name(
    models: Sequence[ModelFacts], name: str, how: str, revisions: Collection[str]
) -> None:
    """Raise ModelError for a name that is none of `revisions`; its text has the rest."""
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


def checkpoint_revision(checkpoint: str, revisions: Mapping[str, Revision]) -> str | None:
    """Return the revision of a known checkpoint; None for an unknown one."""
    table = {_plain(key): name for key, name in read_table(CHECKPOINTS).value.items()}
    for name, revision in revisions.items():
        table |= {_plain(f"example-{name}-{model.role}"): name for model in revision.models}
    said = f"{_plain(checkpoint)} "
    found = [key for key in table if said.startswith(f"{key} ")]
    return table[max(found, key=len)] if found else None


def _known(models: Sequence[ModelFacts], revisions: Mapping[str, Revision]) -> dict[str, str]:
    found: dict[str, str] = {}
    for model in models:
        name = checkpoint_revision(model.checkpoint, revisions)
        if name is not None:
            how = f"known by the checkpoint {model.checkpoint[:60]!r} of {model.name}"
            found.setdefault(name, how)
    return found


def _files(
    models: Sequence[ModelFacts], known_rules: RuleTable
) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """Yield (file name, interface, rules) of each TOML beside a model."""
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


def _rules(
    files: Sequence[tuple[str, str | None, Mapping[str, Any]]],
) -> tuple[dict[str, Any], str]:
    rules: dict[str, Any] = {}
    for file, _, said in files:
        both = merged(rules, said)
        if merged(said, rules) != both:
            raise ModelError(f"{file}: rules: contradict those of the file beside the other model")
        rules = both
    return rules, ", ".join(file for file, _, said in files if said)


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
