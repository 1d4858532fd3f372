"""Pixels to metres and back on a level road, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from modeld.calibration import Camera
from tools.behaviour.road_plane import RoadPlane, where_crossed
from tools.lib.camera import project

CAMERA = Camera(1000, 600, 500.0)
LEVEL = RoadPlane(CAMERA, (0.0, 0.0, 0.0), 1.2)


def test_a_pixel_below_the_middle_lies_on_the_road_by_similar_triangles() -> None:
    # 60 px below the middle: 1.2 * 500 / 60 = 10 m ahead; 100 px right of it: 100 / 500 * 10 m.
    np.testing.assert_allclose(LEVEL.on_road(np.array([[600.0, 360.0]])), [[10.0, 2.0]])


def test_the_sky_has_no_place_on_the_road() -> None:
    found = LEVEL.on_road(np.array([[500.0, 300.0], [500.0, 299.0], [500.0, 301.0]]))
    assert np.isnan(found[:2]).all()
    assert found[2, 0] == pytest.approx(600.0)


def test_a_camera_that_looks_up_has_its_horizon_below_the_middle() -> None:
    # Pitch -atan(0.1) puts straight ahead 50 px below the middle, and the road's rows with it.
    plane = RoadPlane(CAMERA, (0.0, -math.atan(0.1), 0.0), 1.2)
    assert np.isnan(plane.on_road(np.array([[500.0, 349.0]]))).all()
    far = plane.on_road(np.array([[500.0, 351.0]]))[0, 0]
    # The ray of that row falls at (51 / 500 - 0.1) / (1 + 0.1 * 51 / 500) of its length.
    assert far == pytest.approx(1.2 * (1.0 + 0.1 * 0.102) / 0.002)


def test_pixels_and_places_are_each_others_inverse() -> None:
    plane = RoadPlane(Camera(960, 540, 864.0), (0.01, -0.04, 0.02), 1.23)
    places = np.array([[6.0, -1.8], [15.0, 0.3], [40.0, 2.0]])
    points = np.concatenate([places, np.full((3, 1), 1.23)], axis=1)
    pixels = project(points, plane.camera, plane.rpy_rad)
    np.testing.assert_allclose(plane.on_road(pixels), places, rtol=1e-9)


def test_a_straight_line_crosses_a_row_where_similar_triangles_say() -> None:
    # 1.5 m to the left: at 60 px below the middle, 10 m ahead, 500 * 1.5 / 10 = 75 px left of it;
    # at 30 px, 20 m ahead, half of that. Nothing is nearer than 4 m or further than 24 m.
    curve = np.array([[x, -1.5, 1.2] for x in (0.0, 4.0, 24.0)])
    found = LEVEL.columns(curve, np.array([460.0, 360.0, 330.0, 320.0]))
    np.testing.assert_allclose(found, [np.nan, 425.0, 462.5, np.nan])


def test_a_crossing_is_the_first_one_and_a_gap_has_none() -> None:
    along = np.array([0.0, 2.0, 0.0, np.nan, 5.0, 5.0, 7.0])
    across = np.array([0.0, 20.0, 100.0, 0.0, 1.0, 2.0, 4.0])
    found = where_crossed(along, across, np.array([1.0, 2.0, 3.0, 5.0, 6.0]))
    np.testing.assert_allclose(found, [10.0, 20.0, np.nan, 1.0, 3.0])
