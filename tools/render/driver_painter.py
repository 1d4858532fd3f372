"""Paints what the driver camera sees: a face before a seat, which turns a little and blinks."""

from __future__ import annotations

import numpy as np

from modeld.vehicle.calibration import Camera
from tools.render.world import TICKS_PER_S
from tools.world.curves import Floats, random_walk, through_knots
from tools.world.painting.sky import Picture

_CABIN, _SEAT, _SHIRT = (58, 128, 128), (44, 130, 126), (76, 140, 118)
_SKIN, _HAIR, _DARK = (142, 114, 148), (40, 124, 132), (30, 128, 128)
_KNOT_S = 1.5
_BLINK_S = (4.0, 0.2)
# Of the picture's height: radii of the head, and how far the walk of the head moves it.
_HEAD = (0.13, 0.18)
_SWAY = 0.004


class DriverPainter:
    """Paints the driver camera's pictures.

    Args:
        camera: even width and height.
        seconds: length of the drive.
        seed: of how the head moves.
    """

    def __init__(self, camera: Camera, seconds: float, seed: int) -> None:
        self._size = (camera.height, camera.width)
        rng = np.random.default_rng((seed, 7))
        count = int(seconds / _KNOT_S) + 3
        self._knots = [random_walk(rng, count, 5, (-12, 12)).astype(np.float64) for _ in range(2)]
        self._still = self._paint_cabin()

    def paint(self, tick: int) -> Picture:
        """Return what the camera sees at a tick of 10 ms."""
        height, width = self._size
        time_s = tick / TICKS_PER_S
        at = np.array([time_s])
        sway = [float(through_knots(knots, _KNOT_S, at)[0]) * _SWAY for knots in self._knots]
        centre = (0.46 * width + sway[0] * height, (0.42 + 0.3 * sway[1]) * height)
        # The face looks where the head goes.
        nose = centre[0] + 2.0 * sway[0] * height
        picture = Picture(*(plane.copy() for plane in self._still))
        across, up = _HEAD[0] * height, _HEAD[1] * height
        is_closed = time_s % _BLINK_S[0] < _BLINK_S[1]
        eye = (0.012 if is_closed else 0.1) * up
        for colour, x, y, radius_x, radius_y in (
            (_SKIN, centre[0], centre[1] + up, 0.45 * across, 0.5 * up),
            (_HAIR, centre[0], centre[1] - 0.12 * up, 1.06 * across, 1.0 * up),
            (_SKIN, 0.5 * (centre[0] + nose), centre[1] + 0.1 * up, 0.9 * across, 0.9 * up),
            (_DARK, nose - 0.38 * across, centre[1] - 0.1 * up, 0.15 * across, eye),
            (_DARK, nose + 0.38 * across, centre[1] - 0.1 * up, 0.15 * across, eye),
            (_DARK, nose, centre[1] + 0.55 * up, 0.3 * across, 0.06 * up),
        ):
            _paint_ellipse(picture, colour, (x, y), (radius_x, radius_y))
        return picture

    def _paint_cabin(self) -> Picture:
        height, width = self._size
        picture = Picture(
            np.full((height, width), _CABIN[0], np.uint8),
            np.full((height // 2, width // 2), _CABIN[1], np.uint8),
            np.full((height // 2, width // 2), _CABIN[2], np.uint8),
        )
        for colour, x, y, radius_x, radius_y in (
            (_SEAT, 0.46, 0.75, 0.28, 0.6),
            (_SHIRT, 0.46, 1.02, 0.34, 0.4),
        ):
            size = (radius_x * height, radius_y * height)
            _paint_ellipse(picture, colour, (x * width, y * height), size)
        return picture


def _paint_ellipse(
    picture: Picture,
    colour: tuple[int, int, int],
    centre: tuple[float, float],
    radii: tuple[float, float],
) -> None:
    """Blend an ellipse into the picture; its rim is about a pixel wide."""
    for plane, target in enumerate(picture):
        scale = 1 if plane == 0 else 2
        x, y = ((value + 0.5) / scale for value in centre)
        across, up = (max(value / scale, 0.5) for value in radii)
        rows, columns = (
            np.arange(max(0, int(middle - radius) - 1), min(size, int(middle + radius) + 2))
            for middle, radius, size in ((y, up, target.shape[0]), (x, across, target.shape[1]))
        )
        if not (rows.size and columns.size):
            continue
        # One chord for each row: the ellipse's half width there.
        beside: Floats = 1.0 - ((rows + 0.5 - y) / up) ** 2
        half = across * np.sqrt(np.maximum(beside, 0.0))
        share = (
            np.minimum(np.maximum(half[:, None] - np.abs(columns + 0.5 - x) + 0.5, 0.0), 1.0)
            * (half > 0.0)[:, None]
        )
        part = target[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        part[:] = np.rint(part + (float(colour[plane]) - part) * share).astype(np.uint8)
