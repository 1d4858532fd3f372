"""The present and the previous selection in a store of models, for each role.

One small file holds all of it and is replaced in one step. Two links could not be moved together: a
command that is killed between them would leave a selected model that is its own predecessor.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from modeld.errors import StoreError
from modeld.store import files
from modeld.store.manifest import ModelId, plain_object

# The roles of selected models, and the kind that each requires.
ROLES: Final[Mapping[str, str]] = {
    "driving": "driving",
    "fallback": "driving",
    "monitoring": "monitoring",
}
SELECTION: Final = "selection.json"
# A longer file is cut, and then is no JSON.
_MAX_BYTES: Final = 1 << 12


@dataclass(frozen=True, slots=True)
class Selected:
    """The present and the previous model of one role; None: none."""

    current: ModelId | None = None
    previous: ModelId | None = None


def checked_role(role: str) -> str:
    """Return a role; raise StoreError if it is none."""
    if role not in ROLES:
        raise StoreError(f"role: expected one of {', '.join(ROLES)}, found {role!r}")
    return role


def read_selection(store: Path) -> dict[str, Selected]:
    """Return the selection by role; {} if nothing was ever selected.

    Raises StoreError if the file is damaged, or may be written by others.
    """
    path = store / SELECTION
    try:
        data = files.read_bounded(path, _MAX_BYTES)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be read: {error.strerror}; remove it, and select the models again"
        ) from error
    files.check_mode(path)
    try:
        content = plain_object(data)
        return {role: _selected(role, content[role]) for role in map(checked_role, content)}
    except StoreError as error:
        raise StoreError(f"{path}: {error}; remove it, and select the models again") from error


def write_selection(store: Path, selection: Mapping[str, Selected]) -> None:
    """Replace the file. The caller holds the lock of the store."""
    content = {
        role: {"current": str(one.current or ""), "previous": str(one.previous or "")}
        for role, one in sorted(selection.items())
    }
    data = (json.dumps(content, indent=1) + "\n").encode("ascii")
    files.replace_file(store / SELECTION, data)


def _selected(role: str, value: object) -> Selected:
    if not isinstance(value, dict) or set(value) != {"current", "previous"}:
        raise StoreError(f"{role}: expected current and previous, found {str(value)[:80]!r}")
    if not all(isinstance(text, str) for text in value.values()):
        raise StoreError(f"{role}: expected texts NAME@VERSION, found {str(value)[:80]!r}")
    current, previous = (
        ModelId.of(value[key]) if value[key] else None for key in ("current", "previous")
    )
    return Selected(current, previous)
