"""The same rendered drive in full and as devices upload it, through the model of tools/models."""

from pathlib import Path

import numpy as np
import pytest

from modeld.vehicle.cameras import find_cameras
from tests.support.built import built
from tests.tools.closed_loop.conftest import compile_for_any_cpu
from tests.tools.conftest import Modeld
from tools.drives.open_drive import DriveOptions, open_drive
from tools.messages.camera import project
from tools.playback.pictures import main_camera
from tools.simulator.render.picture_files import scale_plane
from tools.simulator.render.spec import SMALL, DriveSpec
from tools.simulator.render.write_drive import write_drive

ROOT = Path(__file__).parents[3]
FULL = DriveSpec(seed=3, frames=100)
# What reduced pictures and a missing wide camera may do on average, with half as much again in
# reserve (docs/adr/0013-replay.md).
GATES = (
    "lateral_2s_mean_m < 0.2",
    "left_line_10m_mean_m < 0.1",
    "right_line_10m_mean_m < 0.1",
    "left_line_30m_mean_m < 0.15",
    "right_line_30m_mean_m < 0.15",
)
POINTS_M = np.array([[8.0, -1.8, 1.22], [30.0, 1.8, 1.22], [80.0, 0.0, 1.22]])


def segment(spec: DriveSpec, name: str) -> Path:
    place = built(name, lambda to: write_drive(spec, to, 1, lambda _: None), spec)
    (found,) = place.iterdir()
    return found


def test_what_is_drawn_on_small_pictures_lies_where_it_does_on_full_ones() -> None:
    place = segment(DriveSpec(seed=3, frames=2, streams=(SMALL,)), "small-drive")
    assert sorted(path.name for path in place.iterdir()) == ["qcamera.ts", "qlog.zst", "truth.npz"]
    drive = open_drive(str(place), DriveOptions())
    info = drive.info
    assert [list(moment.frames) for moment in drive.moments()] == [["road"]] * 2 + [[]]
    drive.close()
    small, full = main_camera(info), find_cameras("mici", "os04c10").road
    assert small is not None
    assert (small.width, small.height) == (526, 330)
    rpy_rad = info.mounting.rpy_rad
    seen = project(POINTS_M, small, rpy_rad) / (526, 330)
    np.testing.assert_allclose(seen, project(POINTS_M, full, rpy_rad) / (1344, 760), rtol=1e-12)


def test_small_pictures_are_means_of_what_they_cover_and_the_same_each_time(tmp_path: Path) -> None:
    plane = np.random.default_rng(0).integers(0, 256, (9, 10), np.uint8)
    # To a common multiple and back: each value covers whole ones then.
    fine = plane.repeat(4, 0).repeat(3, 1).astype(np.float64).reshape(4, 9, 3, 10).mean((1, 3))
    np.testing.assert_array_equal(scale_plane(plane, 3, 4), np.floor(fine + 0.5))
    spec = DriveSpec(seed=3, frames=2, streams=(SMALL,))
    (again,) = write_drive(spec, tmp_path, 1, lambda _: None)
    for one in segment(spec, "small-drive").iterdir():
        assert (again / one.name).read_bytes() == one.read_bytes(), one.name


@pytest.mark.slow
@pytest.mark.opencl
@pytest.mark.timeout(900)
def test_path_and_lines_are_those_of_the_full_drive(tmp_path: Path, modeld: Modeld) -> None:
    files = [ROOT / f"tools/models/{role}.onnx" for role in ("vision", "policy")]
    model = built("shipped", lambda to: compile_for_any_cpu(files, to)) / "driving.pkl"
    logs: list[Path] = []
    for spec in (FULL, DriveSpec(seed=FULL.seed, frames=FULL.frames, streams=(SMALL,))):
        logs.append(tmp_path / f"{len(logs)}.rlog")
        place = segment(spec, "drive-to-be-reduced")
        modeld(0, "replay", place, "--model", model, "-o", logs[-1])
    gates = [word for gate in GATES for word in ("--gate", gate)]
    modeld(0, "compare", *logs, "--gates-only", *gates)
    modeld(1, "compare", *logs, "--gates-only", "--gate", "lateral_2s_mean_m < 0.001")
