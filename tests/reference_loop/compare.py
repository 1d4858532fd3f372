"""Compares two drives of messages field by field: exact where it is exact, else within 1e-4.

The tolerance of a number is relative to the greatest of its field in the whole drive: small
quantities as curvatures are held to it as well as large ones.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.reference_loop.loop import Loop

TOLERANCE = 1e-4
# Set from the schema, not computed by a model: times, distances of lines, ids.
EXACT = (".t", "probTime", "frameAge", "laneLines.x", "roadEdges.x")
Message = dict[str, dict[str, Any]]


def differences(expected: Sequence[Message | None], found: Sequence[Message | None]) -> list[str]:
    """One line for each field that differs, with the first frame where it does; empty if equal."""
    silent = [i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if (not a) != (not b)]
    if silent:
        return [f"frames {silent}: published by one of the two only"]
    ours, theirs = series_of(expected), series_of(found)
    lines = []
    for field in sorted(ours.keys() | theirs.keys()):
        line = _compare(field, ours.get(field, {}), theirs.get(field, {}))
        if line:
            lines.append(line)
    return lines


def _compare(field: str, expected: dict[int, Any], found: dict[int, Any]) -> str | None:
    numbers = [v for values in expected.values() for v in values if type(v) is float]
    scale = float(np.abs(numbers).max()) if numbers else 0.0
    limit = 0.0 if field.endswith(EXACT) else TOLERANCE * scale
    worst, where = 0.0, None
    for index in sorted(expected.keys() | found.keys()):
        a, b = expected.get(index, []), found.get(index, [])
        if len(a) != len(b):
            # What is absent on one side may be there with nothing in it on the other.
            if any([*a, *b]):
                return f"{field}: frame {index}: expected {a[:5]}, found {b[:5]}"
        elif not numbers:
            if a != b:
                return f"{field}: frame {index}: expected {a[:5]}, found {b[:5]}"
        else:
            errors = np.abs(np.asarray(a, np.float32).astype(np.float64) - np.asarray(b))
            # Also where one of them is not a number.
            if not errors.max(initial=0.0) <= limit:
                at = int(np.argmax(errors))
                where = where or f"frame {index}: expected {a[at]}, found {b[at]}"
                worst = max(worst, float(errors[at]))
    return None if where is None else f"{field}: {where}; worst {worst:.3g} of at most {limit:.3g}"


def series_of(messages: Sequence[Message | None]) -> dict[str, dict[int, list[Any]]]:
    """Field -> index of the frame -> its values; items of lists lie one after the other."""
    found: dict[str, dict[int, list[Any]]] = defaultdict(dict)
    for index, message in enumerate(messages):
        for field, values in _fields("", message or {}):
            found[field].setdefault(index, []).extend(values)
    return found


def _fields(path: str, value: Any) -> Iterator[tuple[str, list[Any]]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _fields(f"{path}.{name}" if path else name, item)
    elif not isinstance(value, list | tuple):
        yield path, [value]
    elif value and isinstance(value[0], dict):
        for item in value:
            yield from _fields(path, item)
    else:
        yield path, list(value)


def states_that_differ(loop: Loop, state: Callable[[str], Any]) -> list[str]:
    """What the device keeps and the reference does not: pictures and desires bit by bit.

    `state` gives what a program keeps under a name.
    """
    facts = loop.facts
    values: dict[str, Any] = {name: value for m in loop.models for name, value in m.states.items()}
    if facts.image_gap:
        for name, images in loop.images.items():
            values[f"{name}_images"] = np.stack(images.recent[-1 - facts.image_gap :])
    for name, past, used in (
        ("desire", loop.desires, facts.desire),
        ("features", loop.features, facts.features),
        ("curvature", loop.curvatures, facts.curvatures),
    ):
        if used and past is not None:
            values[name] = past.at(range(1 - len(state(name)), 1))
    wrong = []
    for name, value in values.items():
        kept = state(name)
        exact = value.dtype == np.uint8 or "desire" in name
        limit = 0.0 if exact else TOLERANCE * np.abs(value).max()
        same = kept.dtype == value.dtype and kept.size == value.size
        # Also where one of them is not a number.
        if not same or not np.abs(kept.reshape(value.shape) - value).max() <= limit:
            wrong.append(name)
    return wrong
