"""Paints what one camera sees of the world, as planar 4:2:0 pictures, a few ms each.

The ground is painted by differences: every border of a strip of the road adds, in each row of the
picture, the step of brightness to the pixel it crosses, divided between that pixel and the next;
one running sum along the rows turns the steps into the picture. So borders are exact to a fraction
of a pixel whatever they overlap. Steps are whole numbers and sums wrap, which is exact.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools.render import scene
from tools.render.world import EDGE_OFFSETS_M, LANE_WIDTH_M, LINE_OFFSETS_M, CarState, World
from tools.world.curves import Floats, sin_cos, through_knots
from tools.world.view import Bytes, Mount, View

# Distances ahead at which borders are computed; between them they are straight in the picture.
_AHEAD_M: Floats = np.concatenate(
    [np.linspace(0.4, 4.0, 10), 4.0 + 3.0 * np.arange(1, 24), 73.0 + 7.0 * np.arange(1, 50)]
)
# Where the road turns away further than this it is out of sight: borders then cross a row once.
_MOST_TURN_RAD = 1.2
_HILL_KNOTS = 96
# Things nearer than this are beside the car.
_NEAREST_THING_M = 1.0
# Narrower things are painted without colour.
_COLOUR_PX = 3.0


class Picture(NamedTuple):
    """Planes of a picture: luma (h, w), U and V (h/2, w/2), uint8, BT.601 limited range."""

    luma: Bytes
    u: Bytes
    v: Bytes

    def nv12(self) -> tuple[Bytes, Bytes]:
        """Return luma (h, w) and chroma (h/2, w), U and V interleaved."""
        return self.luma, np.stack([self.u, self.v], axis=2).reshape(self.u.shape[0], -1)


class _Ground(NamedTuple):
    """Borders in the picture, from far to near; row i of `columns` and `rows` is one border."""

    columns: Floats
    rows: Floats
    s_m: Floats


class Painter:
    """Paints one camera's pictures of one world.

    Args:
        world: what there is.
        mount: the camera; even width and height.
        seed: of texture and hills.
    """

    def __init__(self, world: World, mount: Mount, seed: int) -> None:
        self._world = world
        self._view = View(mount)
        lens = mount.lens
        self._size = (lens.height, lens.width)
        rng = np.random.default_rng((seed, 6))
        grain = rng.integers(-16, 17, scene.GRAIN_CELLS) / 16.0
        self._grain_until = np.concatenate([[0.0], np.cumsum(grain - grain.mean())])
        self._hills = rng.integers(20, 100, _HILL_KNOTS) / 2000.0
        horizon = self._view.horizon_rows()
        self._horizon = horizon
        self._is_slanted = float(horizon.max() - horizon.min()) > 1.0
        self._azimuths = self._view.azimuths()
        # The ground begins in this row, even so that both resolutions begin together.
        self._top = min(max(math.floor(horizon.min()) // 2 * 2, 0), lens.height)
        self._luma_rows = _RowBand(self._top, lens.height, 1)
        self._chroma_rows = _RowBand(self._top // 2, lens.height // 2, 2)
        self._strips = _strips()
        # The borders: left and right of each strip.
        self._offsets: Floats = np.array(
            [offset for strip in self._strips for offset in (strip.left_m, strip.right_m)]
        )
        self._sky = self._paint_sky()

    def paint(self, tick: int) -> Picture:
        """Return what the camera sees at a tick of the world."""
        state = self._world.state(tick)
        ground = self._project_ground(state)
        height, width = self._size
        picture = Picture(
            np.empty((height, width), np.uint8),
            np.empty((height // 2, width // 2), np.uint8),
            np.empty((height // 2, width // 2), np.uint8),
        )
        for plane, sky in zip(picture, self._sky, strict=True):
            plane[: sky.shape[0]] = sky
        self._paint_luma(picture.luma[self._top :], ground)
        self._paint_chroma(picture, ground)
        self._paint_hills(picture, state)
        self._paint_things(picture, state)
        return picture

    def _paint_sky(self) -> tuple[Bytes, Bytes, Bytes]:
        _, width = self._size
        planes = []
        for plane, scale in enumerate((1, 2, 2)):
            rows = np.arange(self._top // scale) * (scale / max(1, self._top))
            low, top = scene.SKY_LOW[plane], scene.SKY_TOP[plane]
            column = np.rint(top + (low - top) * rows).astype(np.uint8)
            planes.append(np.repeat(column[:, None], width // scale, axis=1))
        return planes[0], planes[1], planes[2]

    def _project_ground(self, state: CarState) -> _Ground:
        """Project the borders of all strips."""
        s = state.s_m + _AHEAD_M
        _, _, heading = self._world.road_points(s)
        hidden = np.flatnonzero(np.abs(heading - state.heading_rad) > _MOST_TURN_RAD)
        s = s[: hidden[0]] if hidden.size else s
        forward, right = road_places(self._world, state, s, self._offsets[:, None])
        columns, rows = self._view.project(forward, right, self._view.height_m)
        return _Ground(columns[:, ::-1], rows[:, ::-1], s[::-1])

    def _paint_luma(self, target: Bytes, ground: _Ground) -> None:
        band = self._luma_rows
        steps = np.zeros((band.count, self._size[1] + 1), np.uint8)
        s_edges = np.interp(band.edges, ground.rows[0], ground.s_m)
        distance = s_edges[1:] - (ground.s_m[-1] - _AHEAD_M[0])
        seen = scene.visibility(distance)
        grain = self._grain_of(s_edges)
        grass = scene.HAZE + (scene.GRASS[0] + scene.GRASS_GRAIN * grain - scene.HAZE) * seen
        steps[:, 0] = np.rint(grass).astype(np.int16).astype(np.uint8)
        asphalt_grain = (scene.ASPHALT_GRAIN - scene.GRASS_GRAIN) * grain
        for index, strip in enumerate(self._strips):
            luma = strip.luma + asphalt_grain if index == 0 else np.float64(strip.luma)
            amount = luma * seen
            if strip.is_dashed:
                amount = amount * self._dash_share(ground, 2 * index)
            self._add_strip(steps, band, ground, 2 * index, amount)
        np.cumsum(steps[:, :-1], axis=1, dtype=np.uint8, out=target)

    def _dash_share(self, ground: _Ground, border: int) -> Floats:
        """Return which part of each row's stretch of road carries a dash."""
        edges = np.interp(self._luma_rows.edges, ground.rows[border], ground.s_m)
        length = np.maximum(edges[:-1] - edges[1:], 1e-6)
        painted = scene.dashes_until(edges)
        return np.asarray((painted[:-1] - painted[1:]) / length)

    def _grain_of(self, s_edges: Floats) -> Floats:
        """Return the mean grain of each row's stretch of road, -1..1."""
        cells = s_edges / scene.GRAIN_CELL_M
        period = float(scene.GRAIN_CELLS)
        cells = cells - np.floor(cells / period) * period
        index = np.minimum(cells.astype(np.int64), scene.GRAIN_CELLS - 1)
        first = self._grain_until[index]
        until = first + (self._grain_until[index + 1] - first) * (cells - index)
        length = s_edges[:-1] - s_edges[1:]
        return np.asarray(
            np.minimum(
                np.maximum(
                    (until[:-1] - until[1:]) * scene.GRAIN_CELL_M / np.maximum(length, 1e-6), -1.0
                ),
                1.0,
            )
        )

    def _paint_chroma(self, picture: Picture, ground: _Ground) -> None:
        band = self._chroma_rows
        for plane, target in enumerate((picture.u, picture.v), start=1):
            steps = np.zeros((band.count, self._size[1] // 2 + 1), np.uint8)
            steps[:, 0] = scene.GRASS[plane]
            tone = scene.ASPHALT[plane] - scene.GRASS[plane]
            self._add_strip(steps, band, ground, 0, np.full(band.count, float(tone)))
            tone = scene.YELLOW[plane] - scene.ASPHALT[plane]
            self._add_strip(
                steps, band, ground, 2 * _YELLOW_STRIP, np.full(band.count, float(tone))
            )
            np.cumsum(steps[:, :-1], axis=1, dtype=np.uint8, out=target[self._top // 2 :])

    def _add_strip(
        self, steps: Bytes, band: _RowBand, ground: _Ground, border: int, amount: Floats
    ) -> None:
        """Add a strip's step up at its left border and the step down at its right one."""
        last = float(steps.shape[1] - 1)
        # Strips end where the road is out of sight.
        amount = np.where(band.middles >= ground.rows[border, 0], amount, 0.0)
        whole = np.rint(amount).astype(np.int16)
        for side, sign in ((border, 1), (border + 1, -1)):
            column = np.interp(band.middles, ground.rows[side], ground.columns[side])
            # Borders of pixels: pixel i reaches from i to i + 1 of this resolution.
            edge = np.minimum(np.maximum((column + 0.5) / band.scale, 0.0), last)
            pixel = np.minimum(edge.astype(np.int64), steps.shape[1] - 2)
            first = np.rint(amount * (1.0 - (edge - pixel))).astype(np.int16)
            steps[band.numbers, pixel] += (sign * first).astype(np.uint8)
            steps[band.numbers, pixel + 1] += (sign * (whole - first)).astype(np.uint8)

    def _paint_hills(self, picture: Picture, state: CarState) -> None:
        """Paint hills on the horizon, which stand still in the world."""
        angle = self._azimuths + state.heading_rad
        turn = 2.0 * math.pi
        angle = angle - np.floor(angle / turn) * turn
        knots = np.concatenate([self._hills, self._hills[:2]])
        rise = through_knots(knots, turn / _HILL_KNOTS, angle)
        ridge = self._horizon - rise * self._view.lens.focal_px
        height = self._size[0]
        first = max(0, math.floor(ridge.min()) // 2 * 2)
        last = min(height, (math.ceil(self._horizon.max()) + 3) // 2 * 2)
        if last <= first:
            return
        for plane, target in enumerate(picture):
            scale = 1 if plane == 0 else 2
            rows = np.arange(first // scale, last // scale, dtype=np.float32)[:, None]
            # Row edges in luma pixels; the share of the pixel below the ridge, above the horizon.
            upper = rows * np.float32(scale) - np.float32(0.5)
            top = ridge[::scale].astype(np.float32)
            foot = self._horizon[::scale].astype(np.float32)
            below_ridge = np.clip((upper + scale - top) / scale, 0, 1)
            below_horizon = np.clip((upper + scale - foot) / scale, 0, 1)
            part = target[first // scale : last // scale]
            blended: NDArray[np.float32] = part.astype(np.float32)
            if self._is_slanted:
                # The ground was painted from the highest row of the horizon on.
                above = (1 - below_horizon) * (rows >= self._top // scale)
                blended += (np.float32(scene.SKY_LOW[plane]) - blended) * above
            blended += (np.float32(scene.HILL[plane]) - blended) * (below_ridge - below_horizon)
            part[:] = np.rint(blended).astype(np.uint8)

    def _paint_things(self, picture: Picture, state: CarState) -> None:
        """Paint what stands on the road, far things first."""
        boxes, s_m, offsets = self._things(state)
        x, y = road_places(self._world, state, s_m, offsets)
        sizes = np.array([(box.left_m, box.right_m, box.foot_m, box.top_m) for box in boxes]).T
        height = self._view.height_m
        columns, rows = self._view.project(
            np.stack([x, x]), np.stack([y + sizes[0], y + sizes[1]]), height - sizes[[3, 2]]
        )
        seen = scene.visibility(x)
        for index, box in enumerate(boxes):
            if x[index] < _NEAREST_THING_M:
                continue
            self._paint_box(picture, box, (*columns[:, index], *rows[:, index]), float(seen[index]))

    def _things(self, state: CarState) -> tuple[list[scene.Box], Floats, Floats]:
        """Return boxes with the arc lengths and offsets where they stand, far ones first."""
        boxes: list[scene.Box] = []
        s_m: list[float] = []
        offsets: list[float] = []
        first = math.ceil((state.s_m + 1.0) / scene.POST_SPACING_M)
        is_car_painted = False
        for number in range(first + scene.POSTS_AHEAD - 1, first - 2, -1):
            post_s_m = number * scene.POST_SPACING_M
            if not is_car_painted and (post_s_m < state.lead_s_m or number < first):
                is_car_painted = True
                boxes += scene.CAR_BOXES
                s_m += [state.lead_s_m] * len(scene.CAR_BOXES)
                offsets += [self._world.offset_at(state.lead_s_m)] * len(scene.CAR_BOXES)
            if number >= first:
                boxes += [scene.POST_BOX] * 2
                s_m += [post_s_m] * 2
                offsets += [-scene.POST_OFFSET_M, scene.POST_OFFSET_M]
        return boxes, np.array(s_m), np.array(offsets)

    def _paint_box(
        self,
        picture: Picture,
        box: scene.Box,
        corners: tuple[float, float, float, float],
        seen: float,
    ) -> None:
        """Blend a rectangle into the picture; corners are left, right, top, bottom in pixels."""
        left, right, top, bottom = (float(corner) + 0.5 for corner in corners)
        for plane, target in enumerate(picture):
            scale = 1 if plane == 0 else 2
            # Thin grey things leave no trace in the colour.
            if plane and right - left < _COLOUR_PX:
                return
            across = _coverage(left / scale, right / scale, target.shape[1])
            down = _coverage(top / scale, bottom / scale, target.shape[0])
            if across is None or down is None:
                return
            part = target[down[0], across[0]]
            haze = scene.HAZE if plane == 0 else 128
            colour = haze + (box.colour[plane] - haze) * seen
            share = down[1][:, None] * across[1]
            part[:] = np.rint(part + (colour - part) * share).astype(np.uint8)


class _RowBand:
    """Rows of one resolution from the horizon down."""

    def __init__(self, first: int, last: int, scale: int) -> None:
        self.scale = scale
        self.count = last - first
        self.numbers: NDArray[np.int64] = np.arange(self.count)
        edges = np.arange(first, last + 1, dtype=np.float64) * scale - 0.5
        # In luma pixels.
        self.edges: Floats = edges
        self.middles: Floats = 0.5 * (edges[:-1] + edges[1:])


def _strips() -> tuple[scene.Strip, ...]:
    asphalt = scene.Strip(*EDGE_OFFSETS_M, scene.ASPHALT[0] - scene.GRASS[0])
    half = scene.LINE_WIDTH_M / 2
    last = len(LINE_OFFSETS_M) - 1
    lines = [
        scene.Strip(
            offset - half, offset + half, scene.line_luma(index), is_dashed=0 < index < last
        )
        for index, offset in enumerate(LINE_OFFSETS_M)
    ]
    oil = [
        scene.Strip(centre - scene.OIL_HALF_M, centre + scene.OIL_HALF_M, scene.OIL_LUMA)
        for centre in (-LANE_WIDTH_M, 0.0, LANE_WIDTH_M)
    ]
    return (asphalt, *lines, *oil)


# Index of the yellow line among the strips.
_YELLOW_STRIP = 1


def _to_car(state: CarState, x_m: Floats, y_m: Floats) -> tuple[Floats, Floats]:
    """Return points of the world as forward and right of the camera."""
    sine, cosine = (float(part) for part in sin_cos(state.heading_rad))
    east, north = x_m - state.x_m, y_m - state.y_m
    return np.asarray(east * cosine + north * sine), np.asarray(north * cosine - east * sine)


def road_places(
    world: World, state: CarState, s_m: Floats, offset_m: Floats
) -> tuple[Floats, Floats]:
    """Return where points of the road are, as metres forward and right of the camera."""
    x, y, heading = world.road_points(s_m)
    forward, right = _to_car(state, x, y)
    sine, cosine = sin_cos(heading - state.heading_rad)
    return forward - offset_m * sine, right + offset_m * cosine


def _coverage(low: float, high: float, size: int) -> tuple[slice, NDArray[np.float32]] | None:
    """Return the pixels from low to high and how much of each is covered; None: none."""
    first, last = max(0, math.floor(low)), min(size, math.ceil(high))
    if last <= first:
        return None
    pixels = np.arange(first, last, dtype=np.float32)
    share = np.minimum(pixels + 1, np.float32(high)) - np.maximum(pixels, np.float32(low))
    return slice(first, last), np.minimum(np.maximum(share, 0), 1)
