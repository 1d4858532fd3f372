"""Rendered pictures against the ground truth beside them."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modeld.constants import X_IDXS
from modeld.vehicle.cameras import Camera
from tests.tools.world.roads import uniform_road
from tools.messages.camera import project
from tools.simulator.render.picture_files import DriverPainter
from tools.simulator.render.script import SCENERY, Script, ScriptedDrive, seeded_script
from tools.simulator.render.spec import DriveSpec
from tools.simulator.render.write_drive import segment_truth
from tools.simulator.world.painting.backdrop import Picture
from tools.simulator.world.painting.painter import Painter
from tools.simulator.world.view import Lens, Mount

# Over a hill and through a bend.
SEED = 10
HEIGHT_M = 1.22
ROAD, WIDE = Camera(1344, 760, 1141.5), Camera(1344, 760, 425.25)
MOUNTS = [
    (ROAD, (0.0, 0.0, 0.0)),
    (ROAD, (0.0, 0.04, -0.03)),
    (WIDE, (0.0, -0.03, 0.05)),
    (WIDE, (0.03, 0.02, -0.01)),
]
FRAMES = (0, 70, 150)

Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def drive() -> ScriptedDrive:
    return ScriptedDrive(seeded_script(SEED, 8.0))


@pytest.fixture(scope="module")
def truth(drive: ScriptedDrive) -> dict[str, NDArray[Any]]:
    return segment_truth(DriveSpec(seed=SEED, frames=160), drive, 0)


def picture(drive: ScriptedDrive, mount: Mount, tick: int) -> Picture:
    state = drive.state_at(tick)
    return Painter(drive.world, mount).paint(state.body, (state.lead,), tick)


def projected(
    line: tuple[Any, Any], camera: Camera, rpy_rad: tuple[float, float, float], to_m: float = 20.0
) -> Floats:
    """Project y and z of the truth, densely, into (n, 2) pixels; nearer than the car ahead."""
    x = np.linspace(4.0, to_m, 4000)
    points = np.stack([x, *(np.interp(x, X_IDXS, np.float64(values)) for values in line)], 1)
    return project(points, camera, rpy_rad)


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize(("camera", "rpy_rad"), MOUNTS)
def test_solid_line_is_where_its_truth_projects(
    drive: ScriptedDrive,
    truth: dict[str, NDArray[Any]],
    camera: Camera,
    rpy_rad: tuple[float, float, float],
    frame: int,
) -> None:
    mount = Mount(Lens.of(camera), rpy_rad, HEIGHT_M)
    luma = picture(drive, mount, 5 * frame).luma.astype(np.float64)
    lines = np.asarray(truth["lane_line_y_m"][frame], np.float64)
    # The outermost line on the right is solid and white; which of the four it is, offsets say.
    offset = float(truth["lane_offset_m"][frame])
    right = int(np.nanargmin(np.abs(lines[:, 0] - (5.4 - offset))))
    line = projected((lines[right], truth["lane_line_z_m"][frame, right]), camera, rpy_rad)
    rows = np.arange(camera.height)
    columns = np.interp(rows, line[::-1, 1], line[::-1, 0])
    inside = (rows > line[:, 1].min()) & (rows < line[:, 1].max())
    inside &= (columns > 30) & (columns < camera.width - 30)
    assert inside.sum() > 15
    # A row crosses the line obliquely: half its width there, and some more.
    slope = abs((line[-1, 0] - line[0, 0]) / (line[-1, 1] - line[0, 1]))
    reach = round(6 + 6 * slope)
    for row in rows[inside]:
        first = max(0, int(columns[row]) - reach)
        weight = np.maximum(luma[row, first : int(columns[row]) + reach + 2] - 150.0, 0.0)
        middle = first + (weight * np.arange(weight.size)).sum() / weight.sum()
        assert middle == pytest.approx(columns[row], abs=0.6)


def test_left_line_is_yellow(drive: ScriptedDrive, truth: dict[str, NDArray[Any]]) -> None:
    mount = Mount(Lens.of(ROAD), (0.0, 0.02, 0.0), HEIGHT_M)
    chroma = picture(drive, mount, 0).u
    left = (truth["lane_line_y_m"][0, 0], truth["lane_line_z_m"][0, 0])
    line = projected(left, ROAD, mount.rpy_rad)
    column, row = line[line[:, 0] > 60][0]
    # Yellow is where U is low.
    middle = round((column - 0.5) / 2)
    assert chroma[int(row) // 2, middle - 2 : middle + 3].min() < 128 - 22


def test_car_ahead_stands_where_its_truth_projects(
    drive: ScriptedDrive, truth: dict[str, NDArray[Any]]
) -> None:
    mount = Mount(Lens.of(ROAD), (0.0, 0.02, -0.01), HEIGHT_M)
    for frame in FRAMES:
        x, y, _ = np.asarray(truth["lead_xyv"][frame], np.float64)
        # The body, 1.82 m wide, from 0.26 to 0.98 m over the road, which banks a little.
        road = np.interp(x, X_IDXS, truth["lane_line_z_m"][frame, 1:3].mean(axis=0))
        corners = np.array([[x, y - 0.91, road - 0.98], [x, y + 0.91, road - 0.26]])
        (left, top), (right, bottom) = project(corners, ROAD, mount.rpy_rad)
        luma = picture(drive, mount, 5 * frame).luma
        row = round(0.25 * top + 0.75 * bottom)
        dark = np.flatnonzero(luma[row, round(left) - 10 : round(right) + 11] < 78)
        # In a bend a little of its side is seen beside its rear.
        first, last = dark[0] + round(left) - 10, dark[-1] + round(left) - 10
        assert -5.0 < first - left < 1.5
        assert -1.5 < last - right < 5.0


def luma_of(drive: ScriptedDrive, camera: Camera, tick: int = 0) -> Any:
    mount = Mount(Lens.of(camera), (0.0, 0.0, 0.0), HEIGHT_M)
    return picture(drive, mount, tick).luma.astype(np.int16)


def test_ground_has_no_streaks(drive: ScriptedDrive) -> None:
    # A step that is not taken back would brighten a row to its right end: neighbours would differ.
    edge, look = luma_of(drive, ROAD, 250)[400:, -1], SCENERY
    assert np.abs(np.diff(edge)).max() < 140
    sides = np.array([look.verge[0], look.asphalt[0], look.paint, look.yellow[0]])
    nearest = np.abs(edge[:, None] - sides).min(axis=1)
    assert np.mean(nearest <= 12) > 0.9
    # A circle of 60 m: after 72 m the road runs away to the side.
    road, ones = uniform_road(1.0 / 60.0), np.ones(2000)
    script = Script(SEED, road, 20.0 * ones, 30.0 * ones, (), np.zeros(road.x_m.size))
    below = luma_of(ScriptedDrive(script), WIDE)[384:]
    # On the left there is grass down to the road; sums that do not close leave other values.
    assert np.abs(below[:20, :100] - SCENERY.verge[0]).max() < 80
    assert 16 <= below.min() <= below.max() <= 235


def test_driver_has_a_face_that_moves_and_blinks() -> None:
    painter = DriverPainter(ROAD, 8.0, SEED)
    pictures = [painter.paint(tick) for tick in range(0, 500, 20)]
    # Skin is red.
    columns = [np.argwhere(picture.v > 140)[:, 1].mean() for picture in pictures]
    assert np.ptp(columns) > 4
    closed, opened = painter.paint(405).luma, painter.paint(430).luma
    assert (opened < 34).sum() > (closed < 34).sum() + 500
    for plane in pictures[0]:
        assert 16 <= plane.min() <= plane.max() <= 235
