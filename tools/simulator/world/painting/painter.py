"""Renders a camera's pictures of a world as planar YUV 4:2:0, in a few milliseconds each.

`Painter` combines ground, sky, woods and objects. `Sensor` then adds the effects of lens and
sensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tools.simulator.world.car import Body
from tools.simulator.world.curves import sin_cos
from tools.simulator.world.painting.backdrop import Picture, Sky, Woods
from tools.simulator.world.painting.ground import Ground, survey
from tools.simulator.world.painting.light import BLACK, WHITE, Lighting, lighting_of
from tools.simulator.world.painting.things import Things
from tools.simulator.world.scenery import Scenery
from tools.simulator.world.traffic import Vehicle
from tools.simulator.world.view import Bytes, Lens, Mount, Sight, View
from tools.simulator.world.world import World

# --- Effects of lens and sensor: blur, glare, rain, noise ----------------------------------------

Shorts = NDArray[np.int16]

# Noise tables exceed the picture by this much, so each frame uses a different part of them.
_ROOM_PX = 128
# Number of rows processed in one piece, which stays in the cache.
_PIECE_ROWS = 64
# A low sun: tangent of its elevation, luma added at its centre, and width of its glow.
_SUN_RISE, _GLARE_LUMA, _GLARE_REACH = 0.12, 190.0, 0.16
# Rain: streaks per megapixel in the strongest rain, their length, and their luma.
_STREAKS, _STREAK_PX, _STREAK_LUMA = 3500, (4, 22), 26.0


class Sensor:
    """Degrades one camera's pictures with the blur, noise, rain, glare and cast of the scenery."""

    def __init__(self, lens: Lens, scenery: Scenery, lighting: Lighting) -> None:
        self._size = (lens.height, lens.width)
        self._seed = scenery.texture
        self._blur = scenery.blur
        self._cast = scenery.cast
        sine, cosine = (float(part) for part in sin_cos(scenery.sun_azimuth_rad))
        self._sun = (cosine, sine, -_SUN_RISE - _SUN_RISE * (1.0 - scenery.glare))
        self._glare = scenery.glare * _GLARE_LUMA
        rng = np.random.default_rng((scenery.texture, 5))
        table = (lens.height + _ROOM_PX, lens.width + _ROOM_PX)
        self._noise = _noise(rng, table, scenery.noise) if scenery.noise > 0.0 else None
        chroma = (lens.height // 2 + _ROOM_PX, lens.width // 2 + _ROOM_PX)
        self._chroma_noise = (
            _noise(rng, chroma, 0.5 * scenery.noise) if scenery.noise > 1.0 else None
        )
        self._rain = _streaks(rng, table, scenery.rain, lighting) if scenery.rain > 0.0 else None

    def develop(self, picture: Picture, sight: Sight, number: int) -> Picture:
        """Return a picture with the sensor's effects, which differ for each frame `number`."""
        luma, u, v = picture
        for _ in range(max(self._blur - 1, 1) if self._blur else 0):
            luma = _smooth(luma, softly=self._blur == 1)
        shifts = np.random.default_rng((self._seed, 6, number)).integers(0, _ROOM_PX, (4, 2))
        parts = [
            _part(table, shift, self._size)
            for table, shift in ((self._noise, shifts[0]), (self._rain, shifts[1]))
            if table is not None
        ]
        glow = self._glow(sight)
        if glow is not None:
            parts.append(glow)
        luma = _added(luma, parts, 0) if parts else luma
        half = (self._size[0] // 2, self._size[1] // 2)
        planes = []
        for plane, cast, shift in zip((u, v), self._cast, shifts[2:], strict=True):
            parts = []
            if self._chroma_noise is not None:
                parts.append(_part(self._chroma_noise, shift, half))
            planes.append(_added(plane, parts, cast) if parts or cast else plane)
        return Picture(luma, planes[0], planes[1])

    def _glow(self, sight: Sight) -> Shorts | None:
        """Return the luma added by the sun in the lens; None if the sun is not ahead."""
        if self._glare <= 0.0:
            return None
        right, down, forward = (float(part) for part in sight.turn(*self._sun))
        if forward < 0.3:
            return None
        lens = sight.lens
        middle = (
            lens.cy_px + lens.focal_px * down / forward,
            lens.cx_px + lens.focal_px * right / forward,
        )
        height, width = self._size
        reach = _GLARE_REACH * lens.focal_px
        # The glow is a star: bright across and down from the sun, as in a slightly dirty lens.
        rows, columns = (
            1.0 / (1.0 + np.square((np.arange(size) - at) / reach))
            for size, at in zip((height, width), middle, strict=True)
        )
        glow = (self._glare * rows).astype(np.float32)[:, None] * columns.astype(np.float32)
        return np.asarray(glow.astype(np.int16))


def _added(plane: Bytes, parts: Sequence[Shorts], constant: int) -> Bytes:
    """Return a plane plus parts and a constant, clipped to limited range."""
    result = np.empty_like(plane)
    for first in range(0, len(plane), _PIECE_ROWS):
        piece = slice(first, first + _PIECE_ROWS)
        total = plane[piece].astype(np.int16)
        if constant:
            total += np.int16(constant)
        for part in parts:
            total += part[piece]
        np.clip(total, np.int16(BLACK), np.int16(WHITE), out=total)
        result[piece] = total.astype(np.uint8)
    return result


def _part(table: Shorts, shift: NDArray[np.int64], size: tuple[int, int]) -> Shorts:
    row, column = int(shift[0]), int(shift[1])
    return np.asarray(table[row : row + size[0], column : column + size[1]])


def _smooth(luma: Bytes, *, softly: bool) -> Bytes:
    """Return a picture smoothed by the kernel 1, 2, 1, or softly by 1, 6, 1; borders are kept."""
    result = np.empty_like(luma)
    for first in range(0, len(luma), _PIECE_ROWS):
        begin, end = max(first - 1, 0), min(first + _PIECE_ROWS + 1, len(luma))
        piece = luma[begin:end].copy()
        rows = piece[1:-1]
        rows[...] = _mean(
            luma[begin : end - 2], luma[begin + 1 : end - 1], luma[begin + 2 : end], softly
        )
        columns = piece[:, 1:-1]
        columns[...] = _mean(piece[:, :-2], columns, piece[:, 2:], softly)
        last = min(first + _PIECE_ROWS, len(luma))
        result[first:last] = piece[first - begin : last - begin]
    return result


def _mean(before: Bytes, middle: Bytes, after: Bytes, softly: bool) -> Bytes:
    # The means are rounded down and up in turn, which preserves the brightness overall.
    mean = (before & after) + ((before ^ after) >> 1)
    mean = (mean | middle) - ((mean ^ middle) >> 1)
    if softly:
        mean = (mean & middle) + ((mean ^ middle) >> 1)
    return mean


def _noise(rng: np.random.Generator, size: tuple[int, int], deviation: float) -> Shorts:
    """Return nearly normal noise, the sum of four draws; neighbouring columns are correlated."""
    drawn = rng.integers(0, 256, (4, *size), np.uint8).astype(np.int16)
    # Each draw has a standard deviation of 73.9, and the sum of four one of 147.8.
    total = (drawn[0] + drawn[1] + drawn[2] + drawn[3] - 510).astype(np.float32)
    total[:, 1:] += np.float32(0.4) * total[:, :-1]
    total *= np.float32(deviation / (147.8 * 1.08))
    return np.asarray(np.rint(np.clip(total, -40.0, 40.0)).astype(np.int16))


def _streaks(
    rng: np.random.Generator, size: tuple[int, int], rain: float, lighting: Lighting
) -> Shorts:
    """Return falling drops as short bright lines."""
    table = np.zeros(size, np.int16)
    count = round(_STREAKS * rain * size[0] * size[1] / 1e6)
    places = rng.integers(0, (size[0] - _STREAK_PX[1] - 1, size[1] - 4), (count, 2))
    lengths = rng.integers(*_STREAK_PX, count)
    share = min(1.0, 0.25 + lighting.ambient)
    bright = (rng.random(count) * share * _STREAK_LUMA + 3.0).astype(np.int16)
    slants = rng.integers(0, 3, count)
    for (row, column), length, value, slant in zip(
        places.tolist(), lengths.tolist(), bright.tolist(), slants.tolist(), strict=True
    ):
        half = length // 2
        table[row : row + half, column + slant // 2] = value
        table[row + half : row + length, column] = value
    return table


class Painter:
    """Renders one camera's pictures of one world.

    Equal arguments give equal pictures, bit by bit, in any order. The camera's width and height
    must be even.
    """

    def __init__(self, world: World, mount: Mount) -> None:
        self._world = world
        self._view = View(mount)
        scenery = world.scenery
        lighting = lighting_of(scenery)
        self._ground = Ground(self._view, world.lanes, scenery, lighting)
        own = self._ground.offset_m
        self._woods = Woods(mount.lens, world.lanes, scenery, lighting, own.size)
        self._offset_m = np.concatenate([own, self._woods.offset_m])
        self._up_m = np.concatenate([self._ground.up_m, np.zeros(self._woods.offset_m.size)])
        self._sky = Sky(self._view, scenery, lighting)
        self._things = Things(world, lighting)
        self._sensor = Sensor(mount.lens, scenery, lighting)

    def paint(self, body: Body, vehicles: Sequence[Vehicle], number: int) -> Picture:
        """Return the camera's picture; `number` is the frame's number and selects its noise."""
        sight = self._view.sight(body)
        seen = survey(sight, self._world.road, body.s_m, self._offset_m, self._up_m)
        ground = self._ground.paint(seen, body.s_m)
        picture = self._sky.paint(sight, body.heading_rad, ground, seen.skyline)
        self._woods.paint(picture, seen, body.s_m)
        self._things.paint(picture, sight, seen, body.s_m, vehicles)
        return self._sensor.develop(picture, sight, number)
