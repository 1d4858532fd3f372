"""Generates sprites of other cars, seen from behind and from the side.

A sprite is drawn from filled trapezoids and ellipses on a canvas, by kind (car, van, lorry) and
paint.
"""

from __future__ import annotations

import numpy as np

from tools.simulator.world.curves import Floats
from tools.simulator.world.painting.cards import PLANES, Card, Sprite
from tools.simulator.world.painting.light import Lighting

# Sprites include a margin for the shadow, on each side and below, as a share of the car's size.
MARGIN = 0.06
_SIZE_PX = 64
# Canvas pixels per sprite pixel in each direction, for coverage.
_FINE = 2
# Brightness, U and V less 128 of car paints; most are grey, as on real roads.
_PAINTS = (
    (196.0, 0.0, 0.0),
    (204.0, 0.0, 0.0),
    (146.0, 1.0, -1.0),
    (128.0, 1.0, 0.0),
    (88.0, 2.0, -1.0),
    (60.0, 1.0, 0.0),
    (24.0, 1.0, 0.0),
    (30.0, 2.0, -1.0),
    (62.0, -12.0, 48.0),
    (48.0, 30.0, -12.0),
    (84.0, 20.0, -14.0),
    (58.0, -6.0, -8.0),
    (120.0, -18.0, 8.0),
    (142.0, -52.0, 24.0),
)
_GLASS, _DARK, _TYRE = (30.0, 2.0, -1.0), (14.0, 0.0, 0.0), (18.0, 0.0, 0.0)
_PLATE, _LAMP = (170.0, -4.0, 2.0), (48.0, -14.0, 70.0)
# Brightness of lit lamps.
_TAIL_GLOW, _BRAKE_GLOW = 55.0, 105.0
# Height above which a vehicle is a van, and above which it is a lorry.
_VAN_M, _LORRY_M = 1.9, 2.7

Paint = tuple[float, float, float]


class _Canvas:
    """A sprite while it is drawn; x is 0..1 from the left, y 0..1 from the ground up."""

    def __init__(self, chroma: float) -> None:
        size = _SIZE_PX * _FINE
        self._chroma = chroma
        self.planes: Sprite = np.zeros((PLANES, size, size), np.float32)
        at = (np.arange(size) + 0.5) / size
        self._x: Floats = (at * (1.0 + 2.0 * MARGIN) - MARGIN)[None, :]
        self._y: Floats = (1.0 - at * (1.0 + MARGIN))[:, None]

    def fill(
        self,
        bottom: tuple[float, float, float],
        top: tuple[float, float, float],
        paint: Paint,
        glow: float = 0.0,
        alpha: float = 1.0,
    ) -> None:
        """Fill a trapezoid; `bottom` and `top` are height, left end and right end."""
        rows = self._within(self._y[:, 0], bottom[0], top[0])
        columns = self._within(self._x[0], min(bottom[1], top[1]), max(bottom[2], top[2]))
        x, t = self._x[:, columns], (self._y[rows] - bottom[0]) / (top[0] - bottom[0])
        left = bottom[1] + (top[1] - bottom[1]) * t
        right = bottom[2] + (top[2] - bottom[2]) * t
        share = np.where((x >= left) & (x < right), alpha, 0.0)
        self._put(rows, columns, share, (paint, glow))

    def disc(self, x: float, y: float, radii: tuple[float, float], paint: Paint) -> None:
        """Fill an ellipse."""
        rows = self._within(self._y[:, 0], y - radii[1], y + radii[1])
        columns = self._within(self._x[0], x - radii[0], x + radii[0])
        across, up = (self._x[:, columns] - x) / radii[0], (self._y[rows] - y) / radii[1]
        self._put(rows, columns, np.where(across * across + up * up < 1.0, 1.0, 0.0), (paint, 0.0))

    @staticmethod
    def _within(places: Floats, low: float, high: float) -> slice:
        found = np.flatnonzero((places >= low) & (places < high))
        return slice(int(found[0]), int(found[-1]) + 1) if found.size else slice(0, 0)

    def _put(self, rows: slice, columns: slice, share: Floats, look: tuple[Paint, float]) -> None:
        paint, glow = look
        tone = max(self._chroma, 0.9) if glow else self._chroma
        values = np.array([1.0, paint[0], paint[1] * tone, paint[2] * tone, glow])
        part = self.planes[:, rows, columns]
        part += (values[:, None, None] - part) * share

    def card(self) -> Card:
        """Return the finished sprite as a card."""
        fine = self.planes.reshape(PLANES, _SIZE_PX, _FINE, _SIZE_PX, _FINE)
        total = np.zeros((PLANES, _SIZE_PX, _SIZE_PX), np.float32)
        for row in range(_FINE):
            for column in range(_FINE):
                total += fine[:, :, row, :, column]
        total *= np.float32(1.0 / (_FINE * _FINE))
        return Card(total if total[-1].any() else total[:-1])


class CarCards:
    """A cache of car sprites, generated at first use."""

    def __init__(self, lighting: Lighting) -> None:
        self._lighting = lighting
        self._rears: dict[tuple[int, int, bool], Card] = {}
        self._sides: dict[tuple[int, int], Card] = {}

    def rear(self, paint: int, height_m: float, *, is_braking: bool) -> Card:
        """Return the rear view of a car.

        `paint` is the seed of its appearance.
        """
        key = (paint % len(_PAINTS), _kind(height_m), is_braking)
        if key not in self._rears:
            self._rears[key] = self._make_rear(_PAINTS[key[0]], key[1], is_braking=is_braking)
        return self._rears[key]

    def side(self, paint: int, height_m: float) -> Card:
        """Return the side view of a car, with its rear on the left."""
        key = (paint % len(_PAINTS), _kind(height_m))
        if key not in self._sides:
            self._sides[key] = self._make_side(_PAINTS[key[0]], key[1])
        return self._sides[key]

    def _make_rear(self, paint: Paint, kind: int, *, is_braking: bool) -> Card:
        canvas = _Canvas(self._lighting.chroma)
        glow = _BRAKE_GLOW if is_braking else _TAIL_GLOW if self._lighting.beam else 0.0
        canvas.fill((-MARGIN, -MARGIN, 1.0 + MARGIN), (0.03, 0.0, 1.0), _DARK, alpha=0.55)
        canvas.fill((-0.03, 0.02, 0.98), (0.2, 0.02, 0.98), _DARK)
        for left in (0.03, 0.83):
            canvas.fill((-0.03, left, left + 0.14), (0.2, left, left + 0.14), _TYRE)
        lower, upper = _shaded(paint, 0.72), _shaded(paint, 1.08)
        if kind == 0:
            canvas.fill((0.15, 0.02, 0.98), (0.34, 0.0, 1.0), lower)
            canvas.fill((0.34, 0.0, 1.0), (0.64, 0.03, 0.97), paint)
            canvas.fill((0.64, 0.04, 0.96), (1.0, 0.13, 0.87), upper)
            canvas.fill((0.66, 0.1, 0.9), (0.94, 0.17, 0.83), _GLASS)
            lamps, plate = (0.44, 0.58, 0.2), (0.36, 0.46)
        elif kind == 1:
            canvas.fill((0.12, 0.02, 0.98), (0.3, 0.0, 1.0), lower)
            canvas.fill((0.3, 0.0, 1.0), (1.0, 0.06, 0.94), paint)
            canvas.fill((0.56, 0.1, 0.9), (0.88, 0.13, 0.87), _GLASS)
            lamps, plate = (0.32, 0.5, 0.12), (0.24, 0.32)
        else:
            canvas.fill((0.1, 0.04, 0.96), (0.22, 0.04, 0.96), _DARK)
            canvas.fill((0.22, 0.0, 1.0), (1.0, 0.0, 1.0), paint)
            canvas.fill((0.24, 0.49, 0.51), (0.98, 0.49, 0.51), lower)
            canvas.fill((0.96, 0.0, 1.0), (1.0, 0.0, 1.0), upper)
            lamps, plate = (0.13, 0.2, 0.16), (0.13, 0.18)
        low, high, wide = lamps
        for left in (0.02, 0.98 - wide):
            canvas.fill((low, left, left + wide), (high, left, left + wide), _LAMP, glow)
        if kind == 0 and is_braking:
            canvas.fill((0.9, 0.4, 0.6), (0.94, 0.4, 0.6), _LAMP, glow)
        canvas.fill((plate[0], 0.37, 0.63), (plate[1], 0.37, 0.63), _PLATE)
        return canvas.card()

    def _make_side(self, paint: Paint, kind: int) -> Card:
        canvas = _Canvas(self._lighting.chroma)
        canvas.fill((-MARGIN, 0.0, 1.0), (0.06, 0.0, 1.0), _DARK, alpha=0.6)
        canvas.fill((0.0, 0.04, 0.96), (0.2, 0.02, 0.98), _DARK)
        lower, upper = _shaded(paint, 0.7), _shaded(paint, 0.92)
        if kind == 0:
            canvas.fill((0.14, 0.01, 0.99), (0.36, 0.0, 1.0), lower)
            canvas.fill((0.36, 0.0, 1.0), (0.62, 0.02, 0.97), upper)
            canvas.fill((0.62, 0.0, 0.76), (1.0, 0.02, 0.56), upper)
            canvas.fill((0.64, 0.09, 0.7), (0.95, 0.12, 0.55), _GLASS)
            canvas.fill((0.62, 0.36, 0.39), (0.97, 0.36, 0.38), upper)
            wheels, radii = [0.2, 0.8], (0.075, 0.22)
        elif kind == 1:
            canvas.fill((0.12, 0.0, 1.0), (0.5, 0.0, 1.0), lower)
            canvas.fill((0.5, 0.0, 1.0), (1.0, 0.02, 0.8), upper)
            canvas.fill((0.56, 0.66, 0.9), (0.9, 0.66, 0.82), _GLASS)
            wheels, radii = [0.18, 0.82], (0.07, 0.17)
        else:
            canvas.fill((0.22, 0.0, 0.82), (1.0, 0.0, 0.82), upper)
            canvas.fill((0.12, 0.84, 1.0), (0.8, 0.84, 0.98), lower)
            canvas.fill((0.5, 0.88, 0.98), (0.72, 0.88, 0.97), _GLASS)
            wheels, radii = [0.12, 0.22, 0.9], (0.045, 0.14)
        for wheel in wheels:
            canvas.disc(wheel, radii[1] * 0.9, radii, _TYRE)
            canvas.disc(wheel, radii[1] * 0.9, (0.5 * radii[0], 0.5 * radii[1]), (70.0, 0.0, 0.0))
        return canvas.card()


def _kind(height_m: float) -> int:
    """Return 0 for a car, 1 for a van, 2 for a lorry."""
    return (height_m > _VAN_M) + (height_m > _LORRY_M)


def _shaded(paint: Paint, share: float) -> Paint:
    return min(paint[0] * share, 219.0), paint[1] * share, paint[2] * share
