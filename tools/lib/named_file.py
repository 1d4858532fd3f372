"""What an argument names: a role, and the check of a file against it before a command begins.

A role says what is expected, of which kinds, how long it may be, and what error it is otherwise.
Readers still judge what is inside; no reader has to think of pipes, devices and endless files.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from runtime.files.given_file import what_is
from runtime.quantities import size_text
from tools.errors import FileKindError, ToolError
from tools.lib.file_kind import SURE, described, kind_of_start, start_of

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Role:
    """What an argument may name.

    Attributes:
        noun: what is expected, for messages, with an article.
        kinds: of `tools.lib.file_kind.NOUNS` that it may be; none: only a directory will do. What
            is of no known kind is left to the reader, unless all of them are `SURE`.
        error: what is raised; its exit code is that of the role.
        max_bytes: of the file.
        may_be_directory: whether a directory will do, too.
        may_be_missing: whether the command itself says what happens where nothing is there.
        may_be_empty: whether an empty file means something.
        advice: what to do next.
    """

    noun: str
    kinds: frozenset[str] = frozenset()
    error: type[ToolError] = FileKindError
    max_bytes: int | None = None
    may_be_directory: bool = False
    may_be_missing: bool = False
    may_be_empty: bool = False
    advice: str = "check the path"


def check_named(where: str, path: Path, role: Role) -> None:
    """Refuse a file or directory that cannot have its role, without reading more than its start.

    Args:
        where: the option in front of messages, with a space; "" for none.
        path: that was named.
        role: of the argument.

    Raises:
        ToolError: the role's error; names the path, what is expected and what is there.
    """
    found = _misfit(path, role)
    if found:
        raise role.error(f"{where}{path}: expected {role.noun}, found {found}; {role.advice}")


def what_is_at(path: Path) -> str:
    """Return what a name leads to, with an article, without opening anything but a file."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        return _nothing(path, error)
    if not stat.S_ISREG(status.st_mode):
        return what_is(status.st_mode)
    if not os.access(path, os.R_OK, effective_ids=True):
        return "a file that you may not read"
    return described(start_of(path))


def _misfit(path: Path, role: Role) -> str:
    """Return what is there that cannot have the role; "" where it may."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        is_missing = isinstance(error, FileNotFoundError)
        return "" if is_missing and role.may_be_missing else _nothing(path, error)
    if stat.S_ISDIR(status.st_mode):
        is_wanted = role.may_be_directory or not role.kinds
        return _closed(path, os.R_OK | os.X_OK) if is_wanted else what_is(status.st_mode)
    if not stat.S_ISREG(status.st_mode) or not role.kinds:
        return what_is_at(path)
    return _closed(path, os.R_OK) or _unlike(path, status.st_size, role)


def _closed(path: Path, rights: int) -> str:
    return "" if os.access(path, rights, effective_ids=True) else "one that you may not read"


def _unlike(path: Path, size: int, role: Role) -> str:
    """Return what is wrong with length or kind of an ordinary file; "" where nothing is."""
    if not size and role.may_be_empty:
        return ""
    start = start_of(path)
    kind = kind_of_start(start)
    if kind not in role.kinds and (kind or not size or role.kinds <= SURE):
        return described(start)
    if role.max_bytes is not None and size > role.max_bytes:
        return f"{size_text(size)}, more than {size_text(role.max_bytes)}"
    return ""


def _nothing(path: Path, error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        is_link = path.is_symlink()
        return f"a link to {path.readlink()}, which is not there" if is_link else "no such file"
    return f"nothing ({getattr(error, 'strerror', None) or error})"
