"""Drives are kept whole, and those that no checkpoint knows of are nobody's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tools.errors import TrainingError
from tools.training.drive_files import DRIVES, read_drives, write_drive
from tools.training.drives import DriveRecord


def record(rows: int) -> DriveRecord:
    """Return a drive of so many rows."""
    return DriveRecord(
        np.full((rows, 512), 0.5, np.float16),
        np.full((rows, 512), 0.25, np.float16),
        np.ones((rows, 7), np.float32),
        np.zeros((rows, 8), np.float32),
        True,
        np.arange(rows, dtype=np.float32),
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / DRIVES).mkdir()
    for number in range(3):
        write_drive(tmp_path, number, record(number + 2))
    return tmp_path


def test_drives_come_back_in_order_as_many_as_are_known(directory: Path) -> None:
    found = read_drives(directory, 0, 2)
    assert [len(drive.features) for drive in found] == [2, 3]
    assert found[1].is_student is True
    assert found[1].features[0, 0] == 0.5
    assert found[1].mirrored[0, 0] == 0.25
    np.testing.assert_array_equal(found[1].off_m, [0.0, 1.0, 2.0])
    assert [len(drive.features) for drive in read_drives(directory, 1, 3)] == [3, 4]


def test_a_drive_that_is_missing_or_cut_is_one_line(directory: Path) -> None:
    with pytest.raises(TrainingError, match="expected drive 3 of 4, found none that can be read"):
        read_drives(directory, 2, 4)
    path = directory / DRIVES / "000001.npz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TrainingError, match="expected drive 1 of 3, found none that can be read"):
        read_drives(directory, 1, 3)
