"""Text, JSON and TOML that somebody named: read once, up to a length, with errors of one line.

`tools.lib.named_file` looks at a file before a command begins. It may be another one by the time
it is read, so readers open it by these.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.files.user_file import read_given
from tools.errors import ToolError


@dataclass(frozen=True, slots=True)
class GivenText:
    """A file that somebody named, the error that refuses it, and the next thing to do.

    A file longer than `max_bytes` is refused; `option` is "" if none named it.
    """

    path: Path
    error: type[ToolError]
    max_bytes: int
    option: str = ""
    advice: str = "check the path"

    def text(self) -> str:
        """Return the text, without a byte order mark.

        Raises:
            ToolError: `error`; no ordinary file, one that cannot be read, too long, or not UTF-8.
        """
        try:
            return read_given(self.path, self.max_bytes).decode("utf-8-sig")
        except OSError as error:
            raise self._refused(f"cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise self._refused(f"expected UTF-8 text, found: {error.reason}") from error

    def json(self) -> Any:
        """Return what the JSON holds; errors as of `text`."""
        return self._parsed(json.loads, "JSON")

    def toml(self) -> Any:
        """Return what the TOML holds; errors as of `text`."""
        return self._parsed(tomllib.loads, "TOML")

    def _parsed(self, parse: Callable[[str], Any], kind: str) -> Any:
        text = self.text()
        try:
            return parse(text)
        # Brackets in brackets in brackets end in the second one.
        except (ValueError, RecursionError) as error:
            raise self._refused(f"expected {kind}, found: {error}") from error

    def _refused(self, why: str) -> ToolError:
        place = f"{self.option} {self.path}".lstrip()
        return self.error(f"{place}: {why}; {self.advice}")
