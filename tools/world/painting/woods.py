"""Paints what runs along the road behind its verges: edges of woods, hedges, high walls."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tools.world.curves import Floats
from tools.world.painting.light import BLACK, Floats32, Lighting
from tools.world.painting.sky import Picture
from tools.world.painting.survey import Survey
from tools.world.scenery import Scenery
from tools.world.view import Lens
from tools.world.world import Lanes

# Heights and tones are known every metre, and repeat.
_CELLS = 1024
# The foot is darker than the top by this share of the brightness.
_FOOT_SHADE = 0.45
# Anything nearer is painted as if at this distance.
_NEAREST_M = 3.0


class _Edge(NamedTuple):
    """One side's woods: which border of the survey its foot is, and what it looks like.

    `height_m` and `tone` are (cells + 1,) along the road; `side` is 1 on the right, -1 on the left.
    """

    border: int
    side: float
    height_m: Floats
    tone: Floats
    colour: tuple[float, float]


class Woods:
    """Paints the woods of one camera.

    `first` is the number of the first of its borders in surveys.
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
            # Crowns of some metres, and the twigs on them.
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

        The survey holds the borders of `offset_m`.
        """
        for edge in self._edges:
            self._paint_edge(picture, survey, edge, s_m)

    def _paint_edge(self, picture: Picture, survey: Survey, edge: _Edge, s_m: float) -> None:
        # From near to far the foot runs towards the middle; parts that run back are hidden.
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
        # Where it ends far away it is as low as can be seen.
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
        """Fill the picture between two lines; `look` is brightness and nearness by column."""
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
