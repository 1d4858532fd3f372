"""Keeps the drives of a training in its directory, one file for each."""

from __future__ import annotations

import io
import zipfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from runtime.files.whole_file import whole_file
from tools.errors import TrainingError
from tools.lib.given_data import write_npz
from tools.training.samples.drives import DriveRecord

DRIVES = "drives"


def write_drive(directory: Path, number: int, record: DriveRecord) -> None:
    """Write a drive into the training's folder of drives, which exists."""
    data = io.BytesIO()
    write_npz(data, asdict(record))
    with whole_file(_path(directory, number)) as file:
        file.write(data.getbuffer())


def read_drives(directory: Path, first: int, end: int) -> list[DriveRecord]:
    """Return drives of a training, in order.

    `end` is at most the number of drives that the training's checkpoint knows of.

    Raises:
        TrainingError: one is missing or damaged.
    """
    drives = []
    for number in range(first, end):
        path = _path(directory, number)
        try:
            with path.open("rb") as file, np.load(file) as content:
                arrays = {name: content[name] for name in content.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise TrainingError(
                f"{path}: expected drive {number} of {end}, found none that can be read "
                f"({type(error).__name__}); train again"
            ) from None
        arrays["is_student"] = bool(arrays["is_student"])
        drives.append(DriveRecord(**arrays))
    return drives


def _path(directory: Path, number: int) -> Path:
    return directory / DRIVES / f"{number:06}.npz"
