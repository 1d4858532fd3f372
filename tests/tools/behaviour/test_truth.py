"""The truth of rendered drives, read back and refused."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modeld.constants import T_IDXS, X_IDXS
from tests.tools.behaviour.made_models import made_truth
from tools.behaviour.truth import read_truth
from tools.errors import CompareError


def write(path: Path, first: int = 0, **changes: Any) -> Path:
    truth = made_truth(4)
    columns: dict[str, Any] = asdict(truth)
    columns |= {"frame_id": truth.frame_id + first, "t_s": T_IDXS, "x_m": X_IDXS}
    columns |= changes
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: value for name, value in columns.items() if value is not None})
    return path


def test_a_file_a_segment_and_a_route(tmp_path: Path) -> None:
    one = write(tmp_path / "route--0" / "truth.npz")
    write(tmp_path / "route--1" / "truth.npz", first=4)
    assert read_truth(one).frame_id.tolist() == [0, 1, 2, 3]
    assert read_truth(one.parent).frame_id.tolist() == [0, 1, 2, 3]
    both = read_truth(tmp_path)
    assert both.frame_id.tolist() == list(range(8))
    assert both.lane_line_y_m.shape == (8, 4, 33)


def test_none_or_a_damaged_one_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CompareError, match=r"expected truth\.npz of a rendered drive, found none"):
        read_truth(tmp_path)
    path = tmp_path / "truth.npz"
    path.write_bytes(b"PK nothing")
    with pytest.raises(CompareError, match="expected the truth of a rendered drive"):
        read_truth(path)
    whole = write(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CompareError, match="expected the truth of a rendered drive"):
        read_truth(path)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"lead_xyv": None}, "no key lead_xyv"),
        ({"speed_mps": np.zeros(3)}, r"speed_mps of float64\[3\]"),
        ({"speed_mps": np.zeros(4, np.int64)}, r"speed_mps of int64\[4\]"),
        ({"t_s": T_IDXS + 1.0}, "t_s that are not those of the model"),
        ({"frame_id": np.zeros(4)}, r"frame_id of float64\[4\]"),
        ({"path_yaw_rad": np.array([{}], object)}, "found ValueError"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, changes: dict[str, Any], found: str) -> None:
    path = write(tmp_path / "truth.npz", **changes)
    with pytest.raises(CompareError, match=found):
        read_truth(path)
