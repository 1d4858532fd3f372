"""Checks of the files a command is to write, before it does minutes of work for them.

Every writer of ours makes a file beside the target and renames it (`runtime.whole_file`), which
replaces what has that name: an input of the same command. Called by the commands.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from runtime.whole_file import NotAFileError, target_of
from tools.errors import UsageError


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Refuse output files that cannot be written, or that would replace something else.

    Args:
        outputs: path by option, for messages; None is an option that was not given.
        inputs: files that the command reads.

    Raises:
        UsageError: an output has no name or no writable directory, is a directory or a device, is
            one of the inputs, or is named twice.
    """
    sources = [path for path in inputs if path is not None]
    targets: dict[Path, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        _check_place(option, path)
        for source in sources:
            if _is_same(path, source):
                raise UsageError(
                    f"{option} {path}: expected another file than the input {source}, found the "
                    "same, which would be lost; choose another name"
                )
        resolved = path.resolve()
        if resolved in targets:
            raise UsageError(
                f"{option} {path}: expected another file than {targets[resolved]}, found the same; "
                "choose another name"
            )
        targets[resolved] = option


def _check_place(option: str, path: Path) -> None:
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
        raise UsageError(
            f"{option} {path}: expected its directory to exist, found none; "
            f"make it with: mkdir -p {target.parent}"
        )
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"{option} {path}: expected a directory that can be written, found {target.parent}; "
            "choose another one"
        )


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them does not exist, or is not ours to look at
        return False
