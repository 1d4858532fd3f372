"""The choices that one seed makes for a random program."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Choices by a seeded generator; choices that hypothesis draws repeat each other too often."""

    def __init__(self, seed: int | str) -> None:
        self._random = Random(seed)  # noqa: S311  # a reproducible choice, not a secret

    def pick(self, options: Sequence[T]) -> T:
        return self._random.choice(options)

    def integer(self, low: int, high: int) -> int:
        """Return an integer of [low, high]."""
        return self._random.randint(low, high)

    def flag(self, chance: float = 0.5) -> bool:
        """Return true as often as false, or with another chance."""
        return self._random.random() < chance

    def order(self, count: int) -> list[int]:
        return self._random.sample(range(count), count)

    def some(self, options: Sequence[T], most: int) -> list[T]:
        """Return one to `most` different ones, in random order."""
        return self._random.sample(options, min(len(options), self.integer(1, most)))
