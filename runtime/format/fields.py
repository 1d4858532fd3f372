"""Typed, bounded access to the dictionaries of a manifest."""

from typing import Any, Final

from runtime.errors import ArtifactError

MAX_ITEMS: Final = 200_000  # buffers, kernels, launches of one entry; today's models need 300


class Fields:
    """One dictionary of the manifest; every failure is an ArtifactError that names the field."""

    def __init__(self, value: object, where: str) -> None:
        if type(value) is not dict:
            raise ArtifactError(f"{where}: expected a dict, found {type(value).__name__}")
        self.value: dict[str, Any] = value
        self.where = where

    def get(self, key: str, kind: type) -> Any:
        """Return field `key`, which must be exactly of type `kind` (a bool is no int)."""
        if key not in self.value:
            raise ArtifactError(f"{self.where}: the field {key!r} is missing")
        item = self.value[key]
        if type(item) is not kind:
            raise ArtifactError(
                f"{self.where}.{key}: expected {kind.__name__}, found {type(item).__name__}"
            )
        return item

    def text(self, key: str) -> str:
        """Return field `key`, a str."""
        item: str = self.get(key, str)
        return item

    def number(self, key: str, low: int, high: int) -> int:
        """Return field `key`, an int in [low, high]."""
        return in_range(self.get(key, int), low, high, f"{self.where}.{key}")

    def items(self, key: str, limit: int = MAX_ITEMS) -> list[Any]:
        """Return field `key`, a list of at most `limit` items of any type."""
        item: list[Any] = self.get(key, list)
        if len(item) > limit:
            raise ArtifactError(f"{self.where}.{key}: {len(item)} items, at most {limit} expected")
        return item

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        """Return field `key`, one of the texts in `allowed`."""
        item = self.text(key)
        if item not in allowed:
            raise ArtifactError(
                f"{self.where}.{key}: unknown value {item[:80]!r}, expected one of "
                f"{', '.join(allowed)}"
            )
        return item

    def numbers(self, key: str, low: int, high: int, limit: int = MAX_ITEMS) -> tuple[int, ...]:
        """Return a list of integers, each in [low, high]."""
        items = self.items(key, limit)
        for item in items:
            if type(item) is not int or not low <= item <= high:
                in_range(item, low, high, f"{self.where}.{key}")
        return tuple(items)


def in_range(value: object, low: int, high: int, where: str) -> int:
    """Return `value`, which must be an int in [low, high]; `where` names it in the error."""
    if type(value) is not int:
        raise ArtifactError(f"{where}: expected int, found {type(value).__name__}")
    if not low <= value <= high:
        raise ArtifactError(f"{where}: {value} is outside {low}..{high}")
    return value
