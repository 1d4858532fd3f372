"""Takes out of a report what is private: names, paths of homes, addresses, serial numbers.

    /home/ann/models on ann-laptop, tcp://10.0.0.5     ->     ~/models on <host>, tcp://<address>

A report is attached to issues that everybody reads. Whoever writes a part leaves such things out;
this is for what error messages of drivers and libraries bring along. Values of environment
variables are private, too: a path that one holds is shown as the variable's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

# Shorter values are words such as "1" or "dark", which mean nothing private.
MIN_VALUE: Final = 6
MIN_NAME: Final = 3
# Places and words that every machine has.
_PUBLIC_USERS: Final = frozenset({"root", "user", "nobody", "comma", "video", "render", "modeld"})
_PUBLIC_HOSTS: Final = frozenset({"localhost", "modeld", "comma"})
_PUBLIC_PATHS: Final = re.compile(
    r"/(?:(?:usr|bin|sbin|etc|dev|tmp|var|opt|proc|sys|run)(?:/\w+)?)?"
)
_RULES: Final = (
    # Homes of any user, before the one at hand is known by its name.
    (re.compile(r"/(?:home|Users)/[^/\s:'\",;)]+"), "~"),
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b"), "<address>"),
    (re.compile(r"(?<=tcp://)(?!127\.0\.0\.1|localhost)[^\s:/+]+"), "<address>"),
    (re.compile(r"(?i)(?<=serial)([\s:=]+)\S+"), r"\1<id>"),
)


class Scrubber:
    """Scrubs texts.

    Args:
        user: name of the user.
        home: path of the user's home.
        host: name of the machine.
        environment: of the process.
    """

    def __init__(self, user: str, home: str, host: str, environment: Mapping[str, str]) -> None:
        self._exact = dict(_replacements(home, environment))
        names = {host: "<host>", host.partition(".")[0]: "<host>", user: "<user>"}
        public = _PUBLIC_HOSTS | _PUBLIC_USERS
        self._names = [
            (re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w])"), mark)
            for name, mark in names.items()
            if len(name) >= MIN_NAME and name not in public
        ]

    def text(self, text: str) -> str:
        """Return a text without what is private."""
        for value in sorted(self._exact, key=len, reverse=True):
            text = text.replace(value, self._exact[value])
        for pattern, mark in (*_RULES, *self._names):
            text = pattern.sub(mark, text)
        return text

    def plain(self, value: Any) -> Any:
        """Return plain data whose texts, keys too, are without what is private."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(item) for item in value]
        return value


def _replacements(home: str, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield values and what stands for them; the home is the last, and wins."""
    for name, value in environment.items():
        parts = value.split(":") if "/" in value and "://" not in value else [value]
        for part in (p.rstrip("/") for p in parts):
            if len(part) >= MIN_VALUE and not _PUBLIC_PATHS.fullmatch(part):
                yield part, f"${name}"
    if len(home) >= MIN_NAME:
        yield home.rstrip("/"), "~"
