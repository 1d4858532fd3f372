"""The layout file of the page: chosen fields and hidden parts.

JSON: ``{"format": "modeld view layout", "version": 1, "fields": [{"field": "carState.vEgo", "as":
"plot"}], "hidden": ["stages"]}``. What it names has to exist; it is small, and holds no code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tools.errors import UsageError
from tools.lib.given_data import GivenText
from tools.live.fields import MAX_FIELDS, parse_field

FORMAT: Final = "modeld view layout"
VERSION: Final = 1
MAX_BYTES: Final = 12_288
WAYS: Final = ("plot", "text")
# Parts of the page that may be hidden, as it names them.
CARDS: Final = ("camera", "top", "plots", "fields", "now", "health", "stages", "faults")
_KEYS: Final = ("format", "version", "fields", "hidden")


class LayoutError(Exception):
    """A layout cannot be used; the message says what was expected and what was found."""


def parse_layout(text: str) -> dict[str, Any]:
    """Return a layout with all its keys.

    Raises:
        LayoutError: it is none, or names what there is not.
    """
    if len(text.encode()) > MAX_BYTES:
        raise LayoutError(f"expected at most {MAX_BYTES} bytes, found {len(text.encode())}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"expected JSON, found {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise LayoutError(f'expected "format": "{FORMAT}", found another file')
    if found.get("version") != VERSION:
        raise LayoutError(
            f"expected version {VERSION}, found {_brief(found.get('version'))}; save it again with "
            "this version of modeld"
        )
    unknown = sorted(found.keys() - set(_KEYS))
    if unknown:
        raise LayoutError(f"expected {', '.join(_KEYS)}, found {_brief(unknown[0])}")
    fields, hidden = found.get("fields", []), found.get("hidden", [])
    if not isinstance(fields, list) or len(fields) > MAX_FIELDS:
        raise LayoutError(f"fields: expected a list of at most {MAX_FIELDS}, found another value")
    if not isinstance(hidden, list) or not all(one in CARDS for one in hidden):
        raise LayoutError(f"hidden: expected some of {', '.join(CARDS)}, found {_brief(hidden)}")
    return {
        "format": FORMAT,
        "version": VERSION,
        "fields": [_field(one) for one in fields],
        "hidden": sorted(set(hidden)),
    }


def load_layout(path: Path) -> dict[str, Any]:
    """Return the layout of a file.

    Raises:
        UsageError: it cannot be read, or is no layout.
    """
    given = GivenText(path, UsageError, MAX_BYTES, "--layout", "save one on the page")
    try:
        return parse_layout(given.text())
    except LayoutError as error:
        raise UsageError(f"--layout {path}: {error}; {given.advice}") from error


def _field(one: Any) -> dict[str, str]:
    if not isinstance(one, dict) or one.keys() != {"field", "as"} or one["as"] not in WAYS:
        raise LayoutError(f'fields: expected "field" and "as" (plot, text), found {_brief(one)}')
    if parse_field(one["field"]) is None:
        raise LayoutError(
            f"fields: expected a field of a service, as carState.vEgo, found {_brief(one['field'])}"
        )
    return {"field": one["field"], "as": one["as"]}


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
