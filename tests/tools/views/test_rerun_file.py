"""Recordings for rerun: read back by the package itself, where it is installed."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tools.conftest import Modeld
from tests.tools.playback.synthetic_drive import SyntheticDrive
from tests.tools.views.test_overlay_video import made_log
from tools.errors import DriveError
from tools.views.pass_over import Written
from tools.views.recordings import write_rerun

needs_rerun = pytest.mark.skipif(
    importlib.util.find_spec("rerun") is None,
    reason="needs the rerun extra: pip install 'modeld[rerun]'",
)


def column(chunks: list[Any], entity: str, name: str) -> list[tuple[int, Any]]:
    """Return frame id and value of a component of an entity, in order."""
    found = []
    for chunk in chunks:
        if chunk.entity_path != entity or chunk.is_static:
            continue
        rows = chunk.to_record_batch()
        if name in rows.schema.names:
            frames = rows.column("frame").to_pylist()
            found += list(zip(frames, rows.column(name).to_pylist(), strict=True))
    return sorted(found, key=lambda pair: pair[0])


@needs_rerun
def test_frames_curves_and_numbers_are_recorded(tmp_path: Path) -> None:
    from rerun.chunk import RrdReader

    drive = SyntheticDrive(count=6, size=(320, 192))
    log = made_log(tmp_path / "log.rlog", [0, 1, 3, 4])
    out = tmp_path / "out.rrd"
    written = Written(out)
    write_rerun(drive, log, written)
    assert (written.frames, written.answered) == (5, 4)
    rows: Counter[str] = Counter()
    chunks = list(RrdReader(str(out)).stream())
    for chunk in chunks:
        rows[str(chunk.entity_path)] += chunk.num_rows
    assert rows["/numbers/curvature_1pm"] == rows["/numbers/speed_planned_mps"] == 4
    assert rows["/road/model/leads"] == 4
    blobs = column(chunks, "/road/camera", "EncodedImage:blob")
    pictures = [(frame, blob) for frame, blob in blobs if blob]
    assert [frame for frame, _ in pictures] == [0, 1, 2, 3, 4]
    assert all(bytes(blob[0][:2]) == b"\xff\xd8" for _, blob in pictures)
    speeds = column(chunks, "/numbers/speed_planned_mps", "Scalars:scalars")
    assert speeds == [(frame, [15.0]) for frame in (0, 1, 3, 4)]
    # y to the left, z up, on the road: the lane line 1.8 m to the left, at the road's height.
    lines = column(chunks, "/road/model/lane_lines", "LineStrips3D:strips")
    first = np.array(lines[0][1][0])
    np.testing.assert_allclose(first, [[0, 1.8, 0], [60, 1.8, 0]], atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.rlog", "out.rrd"]


@needs_rerun
def test_nothing_is_left_where_the_drive_is_damaged(tmp_path: Path) -> None:
    log = made_log(tmp_path / "log.rlog", [0, 1, 2, 3])
    with pytest.raises(DriveError, match="expected 4 frames, found 2"):
        write_rerun(SyntheticDrive(count=4, damaged_at=2), log, Written(tmp_path / "out.rrd"))
    assert [path.name for path in tmp_path.iterdir()] == ["log.rlog"]


def test_without_the_package_one_line_says_what_to_install(
    tmp_path: Path, video: Path, monkeypatch: pytest.MonkeyPatch, modeld: Modeld
) -> None:
    log = made_log(tmp_path / "log.rlog", [0, 1])
    monkeypatch.setitem(sys.modules, "rerun", None)
    words = ["export", log, "--rerun", tmp_path / "out.rrd", "--drive", video]
    modeld.refused(3, "pip install 'modeld[rerun]'", *words)
    assert list(tmp_path.iterdir()) == [log]
