"""Numbers in text that others wrote, as programs write them: digits of ASCII, and nothing between.

Python's own ``float`` and ``int`` also take ``1_0`` for 10, and digits of every script.
"""

import re
from typing import Final

_FLOAT: Final = re.compile(
    r"[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf(?:inity)?)", re.IGNORECASE
)
# More digits than any number of ours has, and fewer than Python refuses to read.
_INT: Final = re.compile(r"[+-]?[0-9]{1,40}")


def float_of(text: str) -> float:
    """Return the number that a text is, nan and inf too; spaces around it do not count.

    Raises:
        ValueError: it is none.
    """
    return float(_checked(_FLOAT, text))


def int_of(text: str) -> int:
    """Return the whole number that a text is; spaces around it do not count.

    Raises:
        ValueError: it is none.
    """
    return int(_checked(_INT, text))


def _checked(form: re.Pattern[str], text: str) -> str:
    bare = text.strip()
    if form.fullmatch(bare) is None:
        raise ValueError(f"expected a number, found {text[:40]!r}")
    return bare
