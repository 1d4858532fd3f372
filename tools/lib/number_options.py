"""Numbers on the command line: argparse types with bounds, whose refusal is one line.

The numeric options of all commands have these types, so that no command meets a number that it
cannot work with: each has a largest one, and nan is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tools.errors import UsageError

MOST_COUNT: Final = 100_000_000  # of runs, frames or messages: two months at 20 Hz
MOST_SEED: Final = 2**63 - 1  # seeds are stored in 64 bits, signed
MOST_S: Final = 1e7  # four months
MOST_PX: Final = 1e5
MOST_HZ: Final = 1e4


def whole(option: str, least: int = 1, most: int = MOST_COUNT) -> Callable[[str], int]:
    """Return the type of an option that takes a whole number from `least` to `most`.

    The type raises `UsageError` for any other text.
    """

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or not least <= number <= most:
            raise UsageError(
                f"{option}: expected a whole number from {least} to {most}, found {text}"
            )
        return number

    return parse


def seed(option: str = "--seed") -> Callable[[str], int]:
    """Return the type of an option that seeds a generator of random numbers."""
    return whole(option, 0, MOST_SEED)


def real(option: str, least: float, most: float) -> Callable[[str], float]:
    """Return the type of an option that takes a number from `least` to `most`, both finite.

    The type raises `UsageError` for any other text.
    """
    return _real(option, least, most, "from")


def above(option: str, least: float, most: float) -> Callable[[str], float]:
    """Return the same for a number that has to be larger than `least`."""
    return _real(option, least, most, "above")


def _real(option: str, least: float, most: float, word: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = None
        # nan compares with nothing.
        fits = number is not None and least <= number <= most
        if number is None or not fits or (word == "above" and number == least):
            raise UsageError(
                f"{option}: expected a number {word} {least:g} up to {most:g}, found {text}"
            )
        return number

    return parse
