"""Prints strict JSON for `--json`.

JSON has no NaN and no infinities. They become null, as in JavaScript, which readers of numbers
treat as a missing value.
"""

from __future__ import annotations

import json
import math
from typing import Any


def print_json(value: Any) -> None:
    """Print a value of plain types on stdout, in one line."""
    print(json_text(value), flush=True)


def json_text(value: Any, indent: int | None = None) -> str:
    """Return strict JSON, in one line unless `indent` is given. Non-finite floats become null."""
    try:
        # Nearly all values are finite, so this is faster than checking each number first.
        return finite_json_text(value, indent)
    except ValueError:
        return finite_json_text(_strict(value), indent)


def finite_json_text(value: Any, indent: int | None = None) -> str:
    """Return strict JSON, in one line unless `indent` is given.

    Raises:
        ValueError: A number is not finite.
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
