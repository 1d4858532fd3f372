"""Reads single key presses from a terminal, and restores the terminal's settings afterwards."""

from __future__ import annotations

import contextlib
import os
import select
import termios
import tty
from typing import Any, Final

ESCAPE: Final = "\x1b"
# The sequences that terminals send for arrow keys, in both of their modes.
_ARROWS: Final = {"[D": "left", "[C": "right", "OD": "left", "OC": "right"}
_READ_BYTES: Final = 64


class Keys:
    """Reads keys within a ``with`` block; does nothing if the descriptor is not a terminal.

    Signals such as Ctrl-C keep working. A process in the background leaves the terminal alone,
    because accessing it would stop the process.

    `descriptor`: file descriptor of the terminal, 0 for stdin.
    """

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._saved: list[Any] | None = None
        self._pending = ""

    @property
    def is_active(self) -> bool:
        """Whether keys can be read."""
        return self._saved is not None

    def __enter__(self) -> Keys:
        """Switch the terminal to single keys."""
        if os.isatty(self._descriptor) and _in_foreground(self._descriptor):
            saved = termios.tcgetattr(self._descriptor)
            # Saved first, so that the settings are restored even if the next call is interrupted.
            self._saved = saved
            tty.setcbreak(self._descriptor, termios.TCSADRAIN)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the terminal's settings."""
        saved, self._saved = self._saved, None
        if saved is not None:
            with contextlib.suppress(termios.error, OSError):  # the terminal is gone
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, saved)

    def read(self) -> list[str]:
        """Return the keys pressed since the last call: characters, ``left`` and ``right``."""
        if not self.is_active or not select.select([self._descriptor], [], [], 0)[0]:
            return []
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except OSError:
            data = b""
        if not data:
            # The terminal is gone; further reads would return end-of-file forever.
            self.__exit__(None, None, None)
            return []
        keys, self._pending = split_keys(self._pending + data.decode("ascii", "replace"))
        return keys


def split_keys(text: str) -> tuple[list[str], str]:
    """Return the keys in a terminal's output, and an incomplete sequence at its end."""
    keys: list[str] = []
    while text:
        if text[0] != ESCAPE:
            keys.append(text[0])
            text = text[1:]
            continue
        if len(text) < len(ESCAPE) + 2 and (len(text) == 1 or text[1] in "[O"):
            return keys, text
        name = _ARROWS.get(text[1:3])
        if name is not None:
            keys.append(name)
            text = text[3:]
        else:
            # Another key's sequence; skip it up to its final letter, which would look like a key.
            text = _after_sequence(text)
    return keys, ""


def _after_sequence(text: str) -> str:
    if text[1] not in "[O":
        return text[1:]
    for index in range(2, len(text)):
        if "@" <= text[index] <= "~":
            return text[index + 1 :]
    return ""


def _in_foreground(descriptor: int) -> bool:
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False
