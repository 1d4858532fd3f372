"""Lenses and where the world is in their pictures."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from modeld.vehicle.cameras import (
    MED_MODEL_INTRINSICS,
    SBIG_MODEL_INTRINSICS,
    Camera,
    rot_from_euler,
    warp_matrix,
)
from tests.tools.world.roads import body_on, lanes_of, uniform_road, world_of
from tools.messages.camera import project
from tools.simulator.world.curves import Floats
from tools.simulator.world.painting.painter import Painter
from tools.simulator.world.scenery import PLAIN
from tools.simulator.world.view import MED_LENS, WIDE_LENS, Lens, Mount, View, rotation

RPY = (0.03, 0.05, -0.02)
CAMERA = Camera(1344, 760, 1141.5)


def test_lenses_are_the_models_views() -> None:
    for lens, matrix in ((MED_LENS, MED_MODEL_INTRINSICS), (WIDE_LENS, SBIG_MODEL_INTRINSICS)):
        assert (lens.width, lens.height) == (512, 256)
        assert lens.focal_px == matrix[0, 0] == matrix[1, 1]
        assert (lens.cx_px, lens.cy_px) == (matrix[0, 2], matrix[1, 2])
    assert Lens.of(CAMERA) == Lens(1344, 760, 1141.5, 672.0, 380.0)
    assert_allclose(rotation(RPY), rot_from_euler(RPY), atol=1e-15)


def test_sight_projects_as_the_calibration_does_on_any_road() -> None:
    world = world_of(uniform_road(0.004, 0.05, -0.04), lanes_of(2))
    body = body_on(world, 120.0, -1.0, 15.0, 0.1)
    points = np.array([[8.0, -3.0, 1.22], [40.0, 12.0, 1.22], [100.0, 0.0, -5.0]])
    # The calibrated frame begins in the camera, over the body's place.
    turned = np.array(body.axes()).T
    place = np.array([body.x_m, body.y_m, body.z_m])
    x, y, z = place[:, None] + turned @ (points - [0.0, 0.0, 1.22]).T
    sight = View(Mount(Lens.of(CAMERA), RPY, 1.22)).sight(body)
    columns, rows, depth = sight.project(x, y, z)
    assert_allclose(np.stack([columns, rows], 1), project(points, CAMERA, RPY))
    assert (depth > 0.0).all()


def test_horizon_is_where_far_points_are() -> None:
    world = world_of(uniform_road(0.0, 0.05, -0.04), lanes_of(2))
    view = View(Mount(Lens.of(CAMERA), RPY, 1.22))
    sight = view.sight(body_on(world, 120.0, -1.0, 15.0))
    columns, rows, _ = sight.project(np.array([1e8, 1e8]), np.array([-3e7, 4e7]), np.zeros(2))
    assert_allclose(sight.horizon_rows(columns), rows, atol=1e-3)
    far = project(np.array([[1e7, -3e6, 1.22], [1e7, 4e6, 1.22]]), CAMERA, RPY)
    azimuths = np.interp(far[:, 0], np.arange(1344), view.azimuths())
    assert_allclose(azimuths, np.arctan([-0.3, 0.4]), atol=1e-5)


def sampled(plane: Floats, columns: Floats, rows: Floats) -> Floats:
    """Return values between pixels, whose middles are whole numbers."""
    row, column = np.floor(rows).astype(int), np.floor(columns).astype(int)
    row, column = row.clip(0, plane.shape[0] - 2), column.clip(0, plane.shape[1] - 2)
    down, across = rows - row, columns - column
    upper = plane[row, column] * (1 - across) + plane[row, column + 1] * across
    lower = plane[row + 1, column] * (1 - across) + plane[row + 1, column + 1] * across
    return np.asarray(upper * (1 - down) + lower * down)


@pytest.mark.parametrize(
    ("lens", "intrinsics", "focal_px"),
    [(MED_LENS, MED_MODEL_INTRINSICS, 1141.5), (WIDE_LENS, SBIG_MODEL_INTRINSICS, 425.25)],
)
def test_view_painted_directly_is_the_camera_picture_warped(
    lens: Lens, intrinsics: Floats, focal_px: float
) -> None:
    world = world_of(uniform_road(0.002), lanes_of(3, is_yellow=True))
    world = replace(world, scenery=replace(PLAIN, asphalt_grain=0.0, verge_grain=0.0))
    body = body_on(world, 30.0, 0.3, 15.0)
    camera = Camera(1344, 760, focal_px)
    picture = Painter(world, Mount(Lens.of(camera), RPY, 1.22)).paint(body, (), 0)
    direct = Painter(world, Mount(lens, (0.0, 0.0, 0.0), 1.22)).paint(body, (), 0)
    matrix = warp_matrix(RPY, camera.intrinsics, intrinsics).astype(np.float64)
    for plane, scale in ((0, 1), (1, 2)):
        seen, painted = (np.asarray(one[plane], np.float64) for one in (picture, direct))
        # Of a colour sample, the middle of its four pixels.
        v, u = np.mgrid[120:250:scale, 20:490:scale] + 0.5 * (scale - 1)
        errors = []
        for right, down in ((0.0, 0.0), (0.5, 0.0), (-0.5, 0.0), (0.0, 0.5), (0.0, -0.5)):
            at = np.stack([u + right * scale, v + down * scale, np.ones_like(u)])
            ray = np.tensordot(matrix, at, 1)
            places = [(part / ray[2] - 0.5 * (scale - 1)) / scale for part in ray[:2]]
            part = painted[120 // scale : 250 // scale, 20 // scale : 490 // scale]
            errors.append(float(np.square(sampled(seen, *places) - part).mean()))
        assert errors[0] < min(errors[1:])
