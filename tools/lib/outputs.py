"""Checks of the files a command is to write, before it does minutes of work for them.

Every writer of ours makes a file beside the target and renames it (`runtime.files.whole_file`),
which replaces what has that name: an input of the same command. What a command reads and writes is
a row of `tools.command_files`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from runtime.files.given_file import NotAFileError
from runtime.files.whole_file import target_of
from tools.errors import UsageError
from tools.lib.named_file import what_is_at


class _Place(NamedTuple):
    """A file or directory, whatever it is called: two names of one are the same."""

    device: int
    inode: int


def check_outputs(
    files: Mapping[str, Path | None],
    inputs: Mapping[str, Iterable[Path]],
    directories: Mapping[str, Path | None] | None = None,
) -> None:
    """Refuse outputs that cannot be written, or that would replace something else.

    Links of both kinds, ``..`` and directories that do not exist yet are followed to where they
    lead.

    Args:
        files: path that is written by option, for messages; None is an option that was not given.
        inputs: files and directories that are read, by option.
        directories: that get files, and are made where they are missing, by option. One that is
            read, too, may be written by its own option.

    Raises:
        UsageError: a file has no name or no writable directory, is a directory or a device, or is
            named twice; a directory is something else, or can be neither written nor made; or an
            output is one of the inputs, or lies inside one.
    """
    found = _places(inputs)
    given = {option: path for option, path in (directories or {}).items() if path is not None}
    made = {option: _check_input(option, path, found) for option, path in given.items()}
    targets: dict[Path, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        _check_place(option, path, made.values())
        target = _check_input(option, path, found)
        if target in targets:
            raise UsageError(
                f"{option} {path}: expected another file than {targets[target]}, found the same; "
                "choose another name"
            )
        targets[target] = option
    for option, path in given.items():
        _check_directory(option, path)


def tree(path: Path) -> Iterator[Path]:
    """Yield a file, or a directory and all that is in it."""
    yield path
    if os.path.isdir(path):  # noqa: PTH112 - of any name, too long ones as well
        yield from path.rglob("*")


def _places(inputs: Mapping[str, Iterable[Path]]) -> dict[_Place, dict[str, Path]]:
    """Return by what is there which options read it, and how they call it."""
    found: dict[_Place, dict[str, Path]] = {}
    for option, paths in inputs.items():
        for path in paths:
            place = _place(path)
            if place is not None:
                found.setdefault(place, {}).setdefault(option, path)
    return found


def _check_input(option: str, path: Path, inputs: Mapping[_Place, Mapping[str, Path]]) -> Path:
    """Refuse an output that is an input of another option, or inside one; return where it lies."""
    target = Path(os.path.realpath(path))
    for at in (target, *target.parents):
        place = _place(at)
        readers = {} if place is None else inputs.get(place, {})
        source = next((one for reader, one in readers.items() if reader != option), None)
        if source is None:
            continue
        if at == target:
            raise UsageError(
                f"{option} {path}: expected another file than the input {source}, found the same, "
                "which would be lost; choose another name"
            )
        raise UsageError(
            f"{option} {path}: expected a place outside the input {source}, found one inside, "
            "where it would be taken for a part of it; choose another directory"
        )
    return target


def _place(path: Path) -> _Place | None:
    try:
        status = path.stat()
    except (OSError, ValueError):  # it does not exist, or is not ours to look at
        return None
    return _Place(status.st_dev, status.st_ino)


def _check_directory(option: str, path: Path) -> None:
    """Refuse what is no directory, and one that can be neither written nor made."""
    there = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    try:
        is_directory = stat.S_ISDIR(there.stat().st_mode)
        _ = path.is_dir()  # a name that is too long
    except OSError as error:
        raise UsageError(
            f"{option} {path}: expected a directory, found {what_is_at(path)}; choose another one"
        ) from error
    if not is_directory:
        at = "" if there == path else f" at {there}"
        raise UsageError(
            f"{option} {path}: expected a directory, found {what_is_at(there)}{at}; choose another "
            "one"
        )
    _check_writable(option, path, there)


def _check_writable(option: str, path: Path, directory: Path) -> None:
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        raise UsageError(
            f"{option} {path}: expected a directory that can be written, found {directory}; "
            "choose another one"
        )


def _check_place(option: str, path: Path, made: Iterable[Path]) -> None:
    if not path.name:
        raise UsageError(f"{option} {path}: expected the name of a file, found none; give one")
    try:
        target = target_of(path)
    except NotAFileError as error:
        raise UsageError(f"{option} {path}: {error.strerror}") from error
    except NotADirectoryError:
        target = path
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written: {error.strerror}") from error
    if not target.parent.is_dir():
        if any(Path(os.path.realpath(target)).is_relative_to(one) for one in made):
            return
        raise UsageError(
            f"{option} {path}: expected its directory to exist, found none; "
            f"make it with: mkdir -p {target.parent}"
        )
    _check_writable(option, path, target.parent)
