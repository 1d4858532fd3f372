"""Compares two drives of messages field by field: exact where it is exact, else within 1e-4.

The tolerance of a number is relative to the greatest of its field in the whole drive: small
quantities as curvatures are held to it as well as large ones.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

TOLERANCE = 1e-4
# Set from the schema, not computed by a model: times, distances of lines, ids.
EXACT = (".t", "probTime", "frameAge", "laneLines.x", "roadEdges.x")
Message = dict[str, dict[str, Any]]


def differences(expected: Sequence[Message | None], found: Sequence[Message | None]) -> list[str]:
    """One line for each field that differs, with the first frame where it does; empty if equal."""
    silent = [i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if (not a) != (not b)]
    if silent:
        return [f"frames {silent}: published by one of the two only"]
    ours, theirs = _series(expected), _series(found)
    lines = []
    for field in sorted(ours.keys() | theirs.keys()):
        line = _compare(field, ours.get(field, {}), theirs.get(field, {}))
        if line:
            lines.append(line)
    return lines


def _compare(field: str, expected: dict[int, Any], found: dict[int, Any]) -> str | None:
    scale = max(
        (abs(v) for values in expected.values() for v in values if type(v) is float), default=0.0
    )
    limit = 0.0 if field.endswith(EXACT) else TOLERANCE * scale
    worst, where = 0.0, None
    for index in sorted(expected.keys() | found.keys()):
        a, b = expected.get(index, []), found.get(index, [])
        if len(a) != len(b):
            # What is absent on one side may be there with nothing in it on the other.
            if any([*a, *b]):
                return f"{field}: frame {index}: expected {a[:5]}, found {b[:5]}"
            continue
        for x, y in zip(a, b, strict=True):
            if type(x) is float and type(y) is float:
                error = abs(float(np.float32(x)) - y)
                if not error <= limit and (where is None or error > worst):
                    worst, where = error, where or f"frame {index}: expected {x}, found {y}"
            elif x != y:
                return f"{field}: frame {index}: expected {x!r}, found {y!r}"
    return None if where is None else f"{field}: {where}; worst {worst:.3g} of at most {limit:.3g}"


def _series(messages: Sequence[Message | None]) -> dict[str, dict[int, list[Any]]]:
    """Field -> index of the frame -> its values; items of lists lie one after the other."""
    found: dict[str, dict[int, list[Any]]] = defaultdict(dict)
    for index, message in enumerate(messages):
        for field, value in _fields("", message or {}):
            found[field].setdefault(index, []).append(value)
    return found


def _fields(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _fields(f"{path}.{name}" if path else name, item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _fields(path, item)
    else:
        yield path, value
