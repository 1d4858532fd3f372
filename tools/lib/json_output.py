"""Prints one strict JSON object for `--json`, whatever numbers are in it.

JSON has no NaN and no infinities. They become null, as in JavaScript: a number that is no number is
missing, and stays of a type that readers of numbers expect.
"""

from __future__ import annotations

import json
import math
from typing import Any


def print_json(value: Any) -> None:
    """Print a value of plain types on stdout, in one line."""
    print(json_text(value), flush=True)


def json_text(value: Any, indent: int | None = None) -> str:
    """Return strict JSON; floats that are not finite are null.

    `indent` is for files that people read; without it there is one line.
    """
    try:
        # Nearly always: to look at every number beforehand takes longer than this.
        return finite_json_text(value, indent)
    except ValueError:
        return finite_json_text(_strict(value), indent)


def finite_json_text(value: Any, indent: int | None = None) -> str:
    """Return strict JSON.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(value, allow_nan=False, indent=indent, ensure_ascii=indent is None)


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value
