"""The driving model that a user of sunnypilot has chosen, as its parameter says it in JSON.

The daemon runs the artifact of its own configuration. What is said here is how the two differ.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

# The end of what a user may set of a delay or a filter.
MAX_DELAY_S: Final = 5.0
_MOST_CHARACTERS: Final = 256
_MOST_ITEMS: Final = 32
_MOST_GENERATION: Final = 10_000
# Shorter names would be found in any other.
_SHORTEST_NAME: Final = 3


@dataclass(frozen=True, slots=True)
class ModelBundle:
    """A bundle of model files under one name.

    Attributes:
        name: For people.
        internal_name: Short one.
        ref: Commit of the training's repository; "" if it does not say.
        generation: Of the interface.
        runner: What runs it in the stack.
        files: Of its models.
        overrides: What the stack does otherwise for it; "lat" and "long" are time constants, s.
    """

    name: str
    internal_name: str
    ref: str
    generation: int
    runner: str
    files: tuple[str, ...]
    overrides: Mapping[str, str]

    def smoothing_s(self, key: str) -> float:
        """Return the time constant "lat" or "long"; 0, as in the stack, where there is none."""
        return float(self.overrides.get(key, "0"))

    def is_named_in(self, names: Iterable[str]) -> bool:
        """Tell whether one of the names, of checkpoints or files, holds a name of the bundle."""
        own = {_plain(name) for name in (self.name, self.internal_name, self.ref)}
        return any(
            one in _plain(name) for name in names for one in own if len(one) >= _SHORTEST_NAME
        )


def parse_bundle(data: bytes) -> ModelBundle:
    """Read a bundle.

    Raises:
        ValueError: It is no bundle, or a part of it is too long or out of bounds.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON, found {data[:40]!r}") from error
    root = _object(found, "a bundle")
    overrides = {
        _text(one, "key"): _text(one, "value")
        for one in (_object(item, "an override") for item in _list(root, "overrides"))
    }
    for key in ("lat", "long"):
        _check_seconds(key, overrides.get(key, "0"))
    generation = root.get("generation", 0)
    if type(generation) is not int or not 0 <= generation <= _MOST_GENERATION:
        raise ValueError(f"generation: expected 0 to {_MOST_GENERATION}, found {generation!r:.40}")
    name, internal_name = _text(root, "displayName"), _text(root, "internalName")
    if not name and not internal_name:
        raise ValueError("displayName: expected the name of a model, found none")
    models = [_object(item, "a model") for item in _list(root, "models")]
    artifacts = [_object(model.get("artifact", {}), "an artifact") for model in models]
    return ModelBundle(
        name=name or internal_name,
        internal_name=internal_name,
        ref=_text(root, "ref"),
        generation=generation,
        runner=_text(root, "runner"),
        files=tuple(_text(artifact, "fileName") for artifact in artifacts),
        overrides=overrides,
    )


def _plain(text: str) -> str:
    """Return a name as it is compared: people write it with and without spaces and capitals."""
    return "".join(character for character in text.casefold() if character.isalnum())


def _object(found: Any, what: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"expected {what}, found {found!r:.40}")  # noqa: TRY004 -- of the content
    return found


def _list(root: Mapping[str, Any], key: str) -> list[Any]:
    found = root.get(key) or []
    if not isinstance(found, list) or len(found) > _MOST_ITEMS:
        raise ValueError(f"{key}: expected a list of at most {_MOST_ITEMS}, found {found!r:.40}")
    return found


def _text(root: Mapping[str, Any], key: str) -> str:
    found = root.get(key, "")
    if type(found) in (int, float, bool):
        found = str(found)
    if not isinstance(found, str) or len(found) > _MOST_CHARACTERS or not found.isprintable():
        raise ValueError(f"{key}: expected a line of text, found {found!r:.40}")
    return found


def _check_seconds(key: str, text: str) -> None:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= MAX_DELAY_S:
        raise ValueError(f"{key}: expected seconds from 0 to {MAX_DELAY_S:g}, found {text!r:.40}")
