"""Keeps the drives of a training in its directory, one file for each."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from tools.training.drives import DriveRecord

DRIVES = "drives"


def write_drive(directory: Path, number: int, record: DriveRecord) -> None:
    """Write a drive.

    Args:
        directory: of the training; its folder of drives is there.
        number: of the drive.
        record: what it has left.
    """
    with (directory / DRIVES / f"{number:06}.npz").open("wb") as file:
        np.savez(file, **asdict(record))


def read_drives(directory: Path) -> list[DriveRecord]:
    """Return all drives of a training, in order."""
    drives = []
    for path in sorted((directory / DRIVES).glob("*.npz")):
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        arrays["is_student"] = bool(arrays["is_student"])
        drives.append(DriveRecord(**arrays))
    return drives
