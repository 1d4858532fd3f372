"""Finds references that no drive and no model uses any more, and removes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.drives.open_drive import DriveOptions, open_drive
from tools.errors import ToolError
from tools.regress.drive_list import single_drives
from tools.regress.judge.reference import SHORT, ReferenceStore
from tools.regress.time.timing_reference import ENDING as TIMING_ENDING


def unused_references(
    store: ReferenceStore, texts: Sequence[str], options: DriveOptions, models: Sequence[str]
) -> list[Path]:
    """Return the files that no regression of these drives and models reads.

    References of other devices and interfaces stay: another machine may read them. What is no
    reference, and what is damaged, stays too.

    `store`: the directory. `texts`: all drives that are judged by it, as the user named them.
    `options`: how they are opened. `models`: hashes of all models that are judged by it.

    Raises:
        ToolError: a drive cannot be opened; then nobody knows which reference is its own.
    """
    identities = set()
    for text, error in single_drives(texts, options):
        if error is not None:
            raise error
        drive = open_drive(text, options)
        identities.add(drive.info.identity)
        drive.close()
    unused = [
        path
        for path, reference in store.files()
        if reference.key.drive not in identities or reference.key.model not in models
    ]
    short = {model[:SHORT] for model in models}
    times = sorted(store.directory.glob(f"*{TIMING_ENDING}"))
    return unused + [path for path in times if path.name.split(".")[0] not in short]


def remove(paths: Sequence[Path]) -> None:
    """Remove files.

    Raises:
        ToolError: one cannot be removed; those before it are.
    """
    for path in paths:
        try:
            path.unlink()
        except OSError as error:
            raise ToolError(f"{path}: cannot be removed: {error.strerror}") from error
