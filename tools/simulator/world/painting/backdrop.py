"""Renders the background behind the road: clouds, hills, and woods at the horizon and alongside.

`Sky` combines the rendered ground with sky and ridges to a YUV picture; `Woods` then draws the
woods, hedges and walls along the road into it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tools.simulator.world.curves import Floats, ease, through_knots
from tools.simulator.world.painting.ground import Pixels, Survey
from tools.simulator.world.painting.light import BLACK, WHITE, Floats32, Lighting
from tools.simulator.world.scenery import Colour, Scenery
from tools.simulator.world.view import Bytes, Lens, Sight, View
from tools.simulator.world.world import Lanes

_TURN_RAD = 6.283185307179586
# Number of directions around the horizon at which a ridge's height is tabulated.
_DIRECTIONS = 4096
# Number of random knots around the horizon that form the outlines of hills and of woods.
_HILL_KNOTS, _WOOD_KNOTS = 64, 512
# Tangent of the elevation above which the sky has the colour of its top.
_SKY_RISE = 0.42
# Clouds repeat after this many columns. Each scale has a cell's rows and columns, and its share.
_CLOUD_COLUMNS = 2048
_CLOUD_CELLS = ((64, 256, 0.65), (16, 64, 0.35))
_CLOUD_LUMA = 52.0
# Number of rows rounded in one piece.
_PIECE_ROWS = 48
_HILLS: Colour = (98.0, 135.0, 124.0)
_WOODS: Colour = (58.0, 124.0, 125.0)


class _Ridge(NamedTuple):
    """A hill or tree outline against the sky.

    `rise` (directions + 1,) is the tangent of its elevation in each direction.
    """

    rise: Floats
    colour: Colour


class Picture(NamedTuple):
    """The planes of a picture: luma (h, w), U and V (h/2, w/2), uint8, BT.601 limited range."""

    luma: Bytes
    u: Bytes
    v: Bytes

    def nv12(self) -> tuple[Bytes, Bytes]:
        """Return luma (h, w) and chroma (h/2, w) with U and V interleaved."""
        return self.luma, np.stack([self.u, self.v], axis=2).reshape(self.u.shape[0], -1)


class Sky:
    """Renders the sky and the horizon of one camera above its ground."""

    def __init__(self, view: View, scenery: Scenery, lighting: Lighting) -> None:
        self._lens = view.lens
        self._columns: Floats = np.arange(view.lens.width, dtype=np.float64)
        self._azimuths = view.azimuths()
        self._lighting = lighting
        rng = np.random.default_rng((scenery.texture, 4))
        self._ridges = tuple(
            _Ridge(_outline(rng, knots, height, rough), self._lit(colour, nearness))
            for height, knots, rough, colour, nearness in (
                (scenery.hills_rad, _HILL_KNOTS, 0.05, _HILLS, 0.55),
                (scenery.treeline_rad, _WOOD_KNOTS, 0.5, _WOODS, 0.85),
            )
            if height > 0.0
        )
        # The table reaches below the horizon, for cameras that look up.
        rows = min(max(round(view.lens.cy_px) + 80, 64), view.lens.height)
        self._clouds = _clouds(rng, rows, scenery.cloud, lighting)

    def _lit(self, colour: Colour, share: float) -> Colour:
        """Return a colour in this light; `share` is the contrast left by haze."""
        lighting = self._lighting
        bright = BLACK + (colour[0] - BLACK) * lighting.ambient
        toned = [128.0 + (part - 128.0) * lighting.chroma for part in colour[1:]]
        luma, u, v = (
            haze + (part - haze) * share
            for part, haze in zip((bright, *toned), lighting.haze, strict=True)
        )
        return luma, u, v

    def paint(self, sight: Sight, heading_rad: float, ground: Pixels, skyline: Floats) -> Picture:
        """Return the picture of sky and ground.

        `skyline` (width,) is the first row of the ground in each column.
        """
        height, width = self._lens.height, self._lens.width
        horizon = sight.horizon_rows(self._columns)
        outlines = [horizon - self._rise(ridge, heading_rad) for ridge in self._ridges]
        lines = [*outlines, skyline]
        colours = [ridge.colour for ridge in self._ridges]
        first = min(ground.top, *(math.floor(float(line.min())) for line in lines))
        first = min(max(first, 0) // 2 * 2, height)
        last = max(math.ceil(float(skyline.max())) + 2, ground.top)
        last = min(max((last + 1) // 2 * 2, first), height)
        air = self._air(float(horizon[width // 2]), last)
        picture = Picture(
            np.empty((height, width), np.uint8),
            np.empty((height // 2, width // 2), np.uint8),
            np.empty((height // 2, width // 2), np.uint8),
        )
        clouds = self._cloud_rows(float(horizon[width // 2]), heading_rad, last)
        for plane, (target, below) in enumerate(zip(picture, ground.planes, strict=True)):
            scale = 1 if plane == 0 else 2
            black = BLACK if plane == 0 else 128.0
            begin, end, top = first // scale, last // scale, ground.top // scale
            part = np.repeat(air[::scale, plane, None], width // scale, axis=1)
            if clouds is not None and plane == 0:
                part += clouds
            target[:begin] = part[:begin]
            part = part[begin:]
            rows = np.arange(begin, end, dtype=np.float32)[:, None] + np.float32(0.5)
            for line, colour in zip(outlines, colours, strict=True):
                share = _below(rows, line, scale)
                part += (np.float32(colour[plane]) - part) * share
            if end > top:
                share = _below(rows[top - begin :], skyline, scale)
                over = below[: end - top] + np.float32(black)
                part[top - begin :] += (over - part[top - begin :]) * share
            _write(part, 0.0, target[begin:end])
            _write(below[end - top :], black, target[end:])
        return picture

    def _rise(self, ridge: _Ridge, heading_rad: float) -> Floats:
        """Return the height of a ridge above the horizon in each column, in pixels."""
        at = (self._azimuths + heading_rad) * (_DIRECTIONS / _TURN_RAD)
        at -= np.floor(at * (1.0 / _DIRECTIONS)) * _DIRECTIONS
        index = np.minimum(at.astype(np.int64), _DIRECTIONS - 1)
        low = ridge.rise[index]
        rise = low + (ridge.rise[index + 1] - low) * (at - index)
        return np.asarray(rise * self._lens.focal_px)

    def _air(self, horizon: float, last: int) -> Floats32:
        """Return the colour of the air in each row, (rows, 3)."""
        rows = np.arange(last, dtype=np.float64)
        rise = (horizon - rows) * (1.0 / (self._lens.focal_px * _SKY_RISE))
        share = np.clip(rise, 0.0, 1.0)
        share = share * (2.0 - share)
        low, top = np.array(self._lighting.sky_low), np.array(self._lighting.sky_top)
        return np.asarray((low + (top - low) * share[:, None]).astype(np.float32))

    def _cloud_rows(self, horizon: float, heading_rad: float, last: int) -> Floats32 | None:
        """Return the luma added by clouds in the first rows."""
        if self._clouds is None:
            return None
        shift = heading_rad * self._lens.focal_px + self._lens.cx_px
        begin = math.floor(shift) % _CLOUD_COLUMNS
        # The last row of the table is at the horizon.
        size = len(self._clouds)
        rows = np.arange(last) + (size - 1 - math.floor(horizon))
        rows = np.clip(rows, 0, size - 1)
        return np.asarray(self._clouds[rows, begin : begin + self._lens.width])


def _below(rows: Floats32, line: Floats, scale: int) -> Floats32:
    """Return the share of each pixel below a line, (rows, columns)."""
    edge = ((line[::scale] + 0.5) * (1.0 / scale)).astype(np.float32)
    share: Floats32 = rows + np.float32(0.5) - edge
    return np.clip(share, np.float32(0.0), np.float32(1.0), out=share)


def _write(values: Floats32, black: float, target: Bytes) -> None:
    """Round values relative to black to bytes in limited range, in pieces that fit the cache."""
    for first in range(0, len(values), _PIECE_ROWS):
        piece = values[first : first + _PIECE_ROWS] + np.float32(black + 0.5)
        np.clip(piece, np.float32(BLACK), np.float32(WHITE), out=piece)
        target[first : first + _PIECE_ROWS] = piece


def _outline(rng: np.random.Generator, knots: int, height: float, rough: float) -> Floats:
    """Return the height of a ridge in each direction, roughened by trees or rocks."""
    at = np.arange(_DIRECTIONS + 1, dtype=np.float64)
    values = rng.integers(0, 65, knots) / 64.0
    values = np.concatenate([values, values[:1]])
    rise = through_knots(values, _DIRECTIONS / knots, at)
    fine = rng.integers(-32, 33, _DIRECTIONS // 4) / 32.0
    fine = np.concatenate([fine, fine[:1]])
    rise = rise + rough * through_knots(fine, 4.0, at)
    return np.asarray(height * 2.0 * np.maximum(rise, 0.0))


def _clouds(
    rng: np.random.Generator, rows: int, share: float, lighting: Lighting
) -> Floats32 | None:
    """Return the luma added to the sky by clouds, (rows, columns), with its columns repeated."""
    if share <= 0.0:
        return None
    total = np.zeros((rows, _CLOUD_COLUMNS), np.float32)
    for high, wide, part in _CLOUD_CELLS:
        knots = rng.random((rows // high + 2, _CLOUD_COLUMNS // wide)) * part
        knots = np.concatenate([knots, knots[:, :1]], axis=1)
        at = np.arange(rows) / high
        index = at.astype(np.int64)
        rise = ease(at - index)[:, None]
        stretched = (knots[index] + (knots[index + 1] - knots[index]) * rise).astype(np.float32)
        at = np.arange(_CLOUD_COLUMNS) / wide
        index = at.astype(np.int64)
        change = (stretched[:, index + 1] - stretched[:, index]) * ease(at - index).astype(
            np.float32
        )
        total += stretched[:, index]
        total += change
    # A clear sky has single clouds. A closed cover is grey already, so only its brightness varies.
    bright = lighting.sky_low[0] - BLACK
    scale = _CLOUD_LUMA * bright / 180.0
    cover = np.maximum(total - np.float32(0.62 - 0.3 * share), np.float32(0.0))
    cover *= np.float32(2.0 * scale * (1.6 - 0.8 * share))
    cover -= np.float32(0.4 * scale * share)
    return np.concatenate([cover, cover], axis=1)


# --- Edges of woods, hedges and high walls along the road ----------------------------------------

# Heights and tones are tabulated every metre, and repeat after this many.
_CELLS = 1024
# The foot is darker than the top by this share of the brightness.
_FOOT_SHADE = 0.45
# Woods closer than this are drawn at this distance.
_NEAREST_M = 3.0


class _Edge(NamedTuple):
    """The edge of the woods on one side of the road.

    Attributes:
        border: index of the border in surveys that is the foot of the woods.
        side: 1 on the right, -1 on the left.
        height_m, tone: (cells + 1,) height and brightness along the road.
        colour: U and V less 128.
    """

    border: int
    side: float
    height_m: Floats
    tone: Floats
    colour: tuple[float, float]


class Woods:
    """Renders the woods of one camera.

    `first` is the index of its first border in surveys.
    """

    def __init__(
        self, lens: Lens, lanes: Lanes, scenery: Scenery, lighting: Lighting, first: int
    ) -> None:
        self._lens = lens
        self._lighting = lighting
        self._columns: Floats = np.arange(lens.width, dtype=np.float64)
        rng = np.random.default_rng((scenery.texture, 8))
        offsets: list[float] = []
        self._edges: list[_Edge] = []
        for index, side in enumerate((1.0, -1.0)):
            drawn = rng.random((4, _CELLS))
            height = scenery.woods_m[index]
            if height <= 0.0:
                continue
            edge = lanes.right_edge_m if side > 0.0 else lanes.left_edge_m
            rough = scenery.woods_rough
            # Crowns are 4 m wide, with twigs on top.
            crowns = np.repeat(drawn[0, ::4], 4) - 0.5
            outline = 1.0 + rough * (0.9 * crowns + 0.35 * (drawn[1] - 0.5))
            tone = 1.0 + (0.08 + 0.6 * rough) * (drawn[2] - 0.5)
            luma, u, v = scenery.woods
            self._edges.append(
                _Edge(
                    first + len(offsets),
                    side,
                    _closed(height * outline),
                    _closed((luma - BLACK) * tone),
                    ((u - 128.0) * lighting.chroma, (v - 128.0) * lighting.chroma),
                )
            )
            offsets.append(edge + side * scenery.woods_beyond_m)
        self.offset_m: Floats = np.array(offsets, np.float64)

    def paint(self, picture: Picture, survey: Survey, s_m: float) -> None:
        """Paint the woods over sky and ground.

        The survey must contain the borders at `offset_m`.
        """
        for edge in self._edges:
            self._paint_edge(picture, survey, edge, s_m)

    def _paint_edge(self, picture: Picture, survey: Survey, edge: _Edge, s_m: float) -> None:
        # From near to far, the foot runs towards the middle of the picture. Parts that run back are
        # hidden.
        towards = -edge.side * survey.columns[edge.border, ::-1]
        towards = np.maximum.accumulate(towards)
        columns = -edge.side * self._columns
        seen = (columns > towards[0]) & (columns < towards[-1])
        found = np.flatnonzero(seen)
        if found.size < 2:
            return
        first = int(found[0]) // 2 * 2
        last = min((int(found[-1]) + 2) // 2 * 2, self._lens.width)
        columns = columns[first:last]
        nearness = np.interp(columns, towards, survey.nearness_1pm[::-1])
        foot = np.interp(columns, towards, survey.rows[edge.border, ::-1])
        # Columns beyond the visible foot get a nearness of 0.
        nearness = np.where(seen[first:last], np.minimum(nearness, 1.0 / _NEAREST_M), 0.0)
        cells = s_m + 1.0 / np.maximum(nearness, 1e-3)
        cells -= np.floor(cells * (1.0 / _CELLS)) * _CELLS
        index = np.minimum(cells.astype(np.int64), _CELLS - 1)
        part = cells - index
        height = edge.height_m[index]
        height = height + (edge.height_m[index + 1] - height) * part
        tone = edge.tone[index] + (edge.tone[index + 1] - edge.tone[index]) * part
        top = foot - self._lens.focal_px * nearness * height
        self._fill(picture, (first, last), (top, foot), (tone, nearness), edge.colour)

    def _fill(
        self,
        picture: Picture,
        columns: tuple[int, int],
        lines: tuple[Floats, Floats],
        look: tuple[Floats, Floats],
        colour: tuple[float, float],
    ) -> None:
        """Fill the picture between two lines; `look` is brightness and nearness per column."""
        top, foot = lines
        tone, nearness = look
        lighting, height = self._lighting, self._lens.height
        begin = min(max(math.floor(float(top.min())), 0), height) // 2 * 2
        end = min(max(math.ceil(float(foot.max())) + 1, begin), height) // 2 * 2
        if end <= begin:
            return
        contrast = lighting.seen(nearness)
        gain = lighting.ambient + 0.3 * lighting.beam / (1.0 + 0.002 / np.square(nearness + 1e-3))
        bright = (tone * gain * contrast).astype(np.float32)
        scale = (1.0 / np.maximum(foot - top, 1.0)).astype(np.float32)
        for plane, target in enumerate(picture):
            step = 1 if plane == 0 else 2
            part = target[begin // step : end // step, columns[0] // step : columns[1] // step]
            rows = np.arange(begin // step, end // step, dtype=np.float32)[:, None]
            share = _between(rows, top[::step] / step, foot[::step] / step)
            haze = lighting.haze[plane] * (1.0 - contrast[::step])
            black = BLACK if plane == 0 else 128.0
            value = (haze + black * contrast[::step]).astype(np.float32)
            if plane == 0:
                down = (foot.astype(np.float32) - rows) * scale
                shade = np.float32(1.0 - _FOOT_SHADE) + np.float32(_FOOT_SHADE) * down
                over = bright * shade
                over += value
            else:
                tint = colour[plane - 1] * contrast[::step]
                over = np.broadcast_to(value + tint.astype(np.float32), part.shape)
            part[...] = part + (over - part) * share + np.float32(0.5)


def _between(rows: Floats32, top: Floats, foot: Floats) -> Floats32:
    """Return the share of each pixel between two lines, (rows, columns)."""
    zero, one = np.float32(0.0), np.float32(1.0)
    below = rows - (top - 0.5).astype(np.float32)
    np.clip(below, zero, one, out=below)
    above = (foot + 0.5).astype(np.float32) - rows
    np.clip(above, zero, one, out=above)
    below *= above
    return np.asarray(below)


def _closed(values: Floats) -> Floats:
    return np.concatenate([values, values[:1]])
