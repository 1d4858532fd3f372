"""A short drive rendered with numpy: a curving three-lane road in perspective, as NV12 pictures.

It exists so that the demo needs no recorded file. Deterministic: a frame depends on its time only.
Coordinates: x along the road ahead (m), y to the right (m), camera looking straight ahead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modeld.calibration import Camera
from tools.lib.camera import DEFAULT_HEIGHT_M

SPEED_MPS = 18.0
# The road sways with this amplitude and period along its length: 1 / 500 m at the tightest.
CURVATURE_1PM = 2e-3
SWAY_PERIOD_M = 260.0
LANE_LINES_Y_M = (-5.4, -1.8, 1.8, 5.4)
LINE_WIDTH_M = 0.16
ROAD_HALF_WIDTH_M = 6.6
DASH_M, GAP_M = 4.0, 8.0
POST_SPACING_M, POST_Y_M, POST_HEIGHT_M, POST_WIDTH_M = 25.0, 7.6, 1.0, 0.14
LEAD_DISTANCE_M = 34.0
# Beyond this the road is less than two pixels high; it ends in the haze at the horizon.
FAR_M = 600.0

# Colours of what can be seen, (Y, U, V) BT.601 limited range.
SKY, HAZE, HILL, GRASS, ASPHALT, WHITE, YELLOW, POST, CAR, GLASS, LAMP, SHADOW = range(12)
PALETTE: NDArray[np.uint8] = np.array(
    [
        (168, 150, 112),
        (196, 134, 122),
        (92, 124, 118),
        (106, 104, 122),
        (84, 129, 127),
        (216, 128, 128),
        (176, 62, 150),
        (200, 126, 130),
        (66, 138, 112),
        (40, 134, 126),
        (96, 98, 208),
        (44, 129, 127),
    ],
    np.uint8,
)

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DriveState:
    """The car at one time: distance driven, speed and the curvature of the road under it."""

    distance_m: float
    speed_mps: float
    curvature_1pm: float


def drive_state(time_s: float) -> DriveState:
    """Return the car at a time from the start of the drive."""
    distance_m = SPEED_MPS * time_s
    phase = 2.0 * math.pi * distance_m / SWAY_PERIOD_M
    return DriveState(distance_m, SPEED_MPS, CURVATURE_1PM * math.sin(phase))


class DemoDrive:
    """Renders what one camera sees; several cameras of one drive agree.

    Args:
        camera: intrinsics; even width and height.
        height_m: camera over the road.
    """

    def __init__(self, camera: Camera, height_m: float = DEFAULT_HEIGHT_M) -> None:
        self._camera = camera
        self._height_m = height_m
        self._columns = np.arange(camera.width, dtype=np.float64)
        rows = np.arange(camera.height) + 0.5 - camera.height / 2
        with np.errstate(divide="ignore"):
            depth = np.where(rows > 0, camera.focal_px * height_m / rows, np.inf)
        self._first_row = int(np.searchsorted(-depth, -FAR_M))
        self._depth_m: Floats = depth[self._first_row :]
        rng = np.random.default_rng(20)
        # Grain that moves with the road, one value per 0.25 m, and grain of the sensor.
        self._grain = rng.normal(0.0, 3.0, 4096)
        self._sensor_noise = rng.integers(-2, 3, (camera.height, camera.width), dtype=np.int8)

    def render(self, time_s: float) -> tuple[Bytes, Bytes]:
        """Return one picture.

        Args:
            time_s: time from the start of the drive.

        Returns:
            Luma (height, width) and interleaved chroma (height/2, width), both uint8.
        """
        state = drive_state(time_s)
        classes = np.full((self._camera.height, self._camera.width), SKY, np.uint8)
        self._paint_horizon(classes, state)
        self._paint_ground(classes, state)
        self._paint_posts(classes, state)
        self._paint_lead(classes, state, time_s)
        luma = PALETTE[classes, 0].astype(np.int16) + self._sensor_noise
        luma[self._first_row :] += self._moving_grain(state)[:, None]
        chroma = PALETTE[classes[::2, ::2], 1:].reshape(self._camera.height // 2, -1)
        return np.clip(luma, 16, 235).astype(np.uint8), np.ascontiguousarray(chroma)

    def _road_offset_m(self, state: DriveState, depth_m: Floats) -> Floats:
        """Return how far the road has moved to the right at a distance: integrated curvature."""
        # kappa = A sin(w (s + d)) integrated twice over d, with position and heading 0 at d = 0.
        w = 2.0 * math.pi / SWAY_PERIOD_M
        phase = w * state.distance_m
        heading = CURVATURE_1PM * math.cos(phase) / w
        bend = CURVATURE_1PM * (np.sin(phase) - np.sin(phase + w * depth_m)) / w**2
        return np.asarray(bend + heading * depth_m)

    def _paint_horizon(self, classes: Bytes, state: DriveState) -> None:
        horizon = self._first_row
        classes[max(0, horizon - self._camera.height // 16) : horizon] = HAZE
        # Hills stand still in the world, so they move across the picture as the road bends.
        w = 2.0 * math.pi / SWAY_PERIOD_M
        yaw = CURVATURE_1PM * (1.0 - math.cos(w * state.distance_m)) / w
        angle = (self._columns - self._camera.width / 2) / self._camera.focal_px + yaw
        outline = 0.022 + 0.012 * np.sin(9.0 * angle) + 0.006 * np.sin(23.0 * angle + 1.0)
        top = horizon - outline * self._camera.focal_px
        rows = np.arange(horizon)[:, None]
        classes[:horizon][rows >= top] = HILL

    def _paint_ground(self, classes: Bytes, state: DriveState) -> None:
        ground = classes[self._first_row :]
        ground[:] = GRASS
        offset = self._road_offset_m(state, self._depth_m)
        self._paint_span(ground, offset, 0.0, ROAD_HALF_WIDTH_M, ASPHALT)
        along = (state.distance_m + self._depth_m) % (DASH_M + GAP_M)
        dash = along < DASH_M
        for index, y_m in enumerate(LANE_LINES_Y_M):
            is_outer = index in (0, len(LANE_LINES_Y_M) - 1)
            colour = YELLOW if index == 0 else WHITE
            shown = np.ones_like(dash) if is_outer else dash
            # At least one pixel wide, as a camera's blur would make it.
            half = np.maximum(LINE_WIDTH_M / 2, 0.5 * self._depth_m / self._camera.focal_px)
            self._paint_span(ground, offset + y_m, 0.0, np.where(shown, half, -1.0), colour)

    def _paint_span(
        self, ground: Bytes, centre_m: Floats, shift_m: float, half_m: Floats | float, colour: int
    ) -> None:
        scale = self._camera.focal_px / self._depth_m
        middle = self._camera.width / 2 + scale * (centre_m + shift_m)
        left, right = middle - scale * half_m, middle + scale * half_m
        columns = self._columns + 0.5
        ground[(columns >= left[:, None]) & (columns < right[:, None])] = colour

    def _paint_posts(self, classes: Bytes, state: DriveState) -> None:
        first = math.ceil(state.distance_m / POST_SPACING_M + 0.15)
        for number in range(first + 5, first - 1, -1):  # far ones first
            depth_m = number * POST_SPACING_M - state.distance_m
            for side in (-1.0, 1.0):
                y_m = side * POST_Y_M
                box = (y_m - POST_WIDTH_M / 2, POST_HEIGHT_M, y_m + POST_WIDTH_M / 2, 0.0)
                self._paint_box(classes, state, depth_m, box, POST)

    def _paint_lead(self, classes: Bytes, state: DriveState, time_s: float) -> None:
        depth_m = LEAD_DISTANCE_M + 4.0 * math.sin(1.2 * time_s)
        for box, colour in (
            ((-1.0, 0.12, 1.0, -0.08), SHADOW),
            ((-0.9, 0.95, 0.9, 0.25), CAR),
            ((-0.72, 1.45, 0.72, 0.95), CAR),
            ((-0.62, 1.36, 0.62, 1.0), GLASS),
            ((-0.88, 0.85, -0.62, 0.68), LAMP),
            ((0.62, 0.85, 0.88, 0.68), LAMP),
            ((-0.85, 0.25, -0.62, 0.0), SHADOW),
            ((0.62, 0.25, 0.85, 0.0), SHADOW),
        ):
            self._paint_box(classes, state, depth_m, box, colour)

    def _paint_box(
        self,
        classes: Bytes,
        state: DriveState,
        depth_m: float,
        box: tuple[float, float, float, float],
        colour: int,
    ) -> None:
        """Fill an upright rectangle: left, top, right, bottom in m (y right, height up)."""
        scale = self._camera.focal_px / depth_m
        centre = float(self._road_offset_m(state, np.array([depth_m]))[0])
        left, right = (self._camera.width / 2 + scale * (centre + y) for y in (box[0], box[2]))
        top, bottom = (
            self._camera.height / 2 + scale * (self._height_m - z) for z in (box[1], box[3])
        )
        rows = slice(max(0, round(top)), max(0, round(bottom)))
        columns = slice(max(0, round(left)), max(0, round(left) + 1, round(right)))
        classes[rows, columns] = colour

    def _moving_grain(self, state: DriveState) -> NDArray[np.int16]:
        """Return luma differences per ground row; fading where a row covers many metres."""
        cell = ((state.distance_m + self._depth_m) * 4.0).astype(np.int64) % self._grain.size
        fade = np.clip(1.5 - self._depth_m / 40.0, 0.0, 1.0)
        return np.asarray(np.rint(self._grain[cell] * fade), np.int16)
