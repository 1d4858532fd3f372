"""Renders the ground: a road over hills, with markings, grain and shadows.

The ground is a sum of *strips*, stretches along the road between a left and a right border. Each
border adds, in each row of the picture, its step of brightness to the pixel it crosses and the next
one, in proportion. A running sum along the rows then turns the steps into the picture, so borders
are exact to a fraction of a pixel. Before that, a *survey* projects the road ahead: the borders of
all strips, and the skyline, where the land ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools.simulator.world.curves import Floats
from tools.simulator.world.painting.light import BLACK, Floats32, Lighting, beam_picture
from tools.simulator.world.painting.strips import (
    GRAIN_ROWS,
    Grain,
    Strip,
    lengths_of,
    shade_strips,
    strips_of,
)
from tools.simulator.world.road import Road
from tools.simulator.world.scenery import Scenery
from tools.simulator.world.view import NEAREST_M, Sight, View
from tools.simulator.world.world import Lanes

# Distances ahead at which borders are projected; they are straight lines in between.
_AHEAD_M: Floats = np.concatenate(
    [
        np.arange(0.4, 4.0, 0.4),
        np.arange(4.0, 16.0, 1.0),
        np.arange(16.0, 40.0, 2.0),
        np.arange(40.0, 80.0, 4.0),
        np.arange(80.0, 424.0, 8.0),
    ]
)
_NEARNESS_1PM: Floats = 1.0 / _AHEAD_M
# Cosine of 70 degrees. A road that turns further away from the view direction is out of sight.
_LEAST_ACROSS = 0.34
# The land is as high as the road up to this distance on both sides.
_LAND_M = 180.0
# First index of _AHEAD_M and number of columns used to compute the skyline.
_LAND_FROM = 21
_SKYLINE_COLUMNS = 49


class Survey(NamedTuple):
    """The projection of the road ahead of the camera.

    Attributes:
        columns: (b, n) columns of borders, from far to near; the last border is the reference line.
        rows: (b, n) rows of borders, never decreasing: points hidden by a crest have its row.
        nearness_1pm: (n,) inverse of the arc length from the car.
        skyline: (width,) row in which the land ends.
    """

    columns: Floats
    rows: Floats
    nearness_1pm: Floats
    skyline: Floats

    def row_at(self, ahead_m: float) -> float:
        """Return the row of the road at a distance, or of the crest that hides it."""
        return float(np.interp(1.0 / ahead_m, self.nearness_1pm, self.rows[-1]))


def survey(sight: Sight, road: Road, s_m: float, offset_m: Floats, up_m: Floats) -> Survey:
    """Project the road ahead of an arc length.

    `offset_m` and `up_m` (b,) are the borders' lateral offsets and heights above the road.
    """
    s = s_m + _AHEAD_M
    count = max(int(np.searchsorted(s, road.end_m)), 2)
    x, y, z = road.places(s[:count], 0.0)
    x1, y1, z1 = road.places(s[:count], 1.0)
    centre = sight.reach(x, y, z)
    across = sight.turn(x1 - x, y1 - y, z1 - z)
    away = np.flatnonzero(across[0] < _LEAST_ACROSS)
    count = max(int(away[0]), 2) if away.size else count
    rise = (-sight.right[2], -sight.down[2], -sight.forward[2])
    # Heights are measured along the world's vertical.
    offset, up = np.append(offset_m, 0.0)[:, None], np.append(up_m, 0.0)[:, None]
    right, down, forward = (
        one[:count] + offset * side[:count] + up * vertical
        for one, side, vertical in zip(centre, across, rise, strict=True)
    )
    lens = sight.lens
    scale = lens.focal_px / np.maximum(forward, NEAREST_M)
    rows = np.minimum.accumulate(lens.cy_px + scale * down, axis=1)
    columns = lens.cx_px + scale * right
    return Survey(
        np.asarray(columns[:, ::-1], order="C"),
        np.asarray(rows[:, ::-1], order="C"),
        _NEARNESS_1PM[:count][::-1].copy(),
        _skyline(sight, centre, sight.turn(x1 - x, y1 - y, 0.0)),
    )


def _skyline(
    sight: Sight,
    centre: tuple[Floats, Floats, Floats],
    level: tuple[Floats, Floats, Floats],
) -> Floats:
    """Return the row in which the land ends in each column: the horizon, or hills in front of it.

    `level` is the direction across the reference line without bank, along which the land extends.
    """
    lens = sight.lens
    columns = np.linspace(0.0, lens.width - 1.0, _SKYLINE_COLUMNS)
    horizon = sight.horizon_rows(columns)
    aside = ((columns - lens.cx_px) / lens.focal_px)[:, None]
    right, down, forward = (part[_LAND_FROM:] for part in centre)
    right1, down1, forward1 = (part[_LAND_FROM:] for part in level)
    # The intersection of the cross line with each column, in metres from the road.
    slope = right1 - aside * forward1
    at = (aside * forward - right) / np.where(np.abs(slope) < 1e-3, 1e-3, slope)
    depth = forward + at * forward1
    is_land = (np.abs(at) < _LAND_M) & (depth > 1.0)
    rows = lens.cy_px + lens.focal_px * (down + at * down1) / np.maximum(depth, 1.0)
    land = np.where(is_land, rows, np.inf).min(axis=1, initial=np.inf)
    every = np.arange(lens.width, dtype=np.float64)
    return np.asarray(np.interp(every, columns, np.minimum(land, horizon)))


# --- The ground between the borders --------------------------------------------------------------

# Scale of the fixed-point sums. Integer sums are exact and several times faster.
_ONE = 65536.0
# Strips above the ground fade out between half of this distance and this distance.
_HIGH_TO_M = 160.0


class Band:
    """Rows `top` to before `bottom` of the picture, each with several sample rows for borders."""

    def __init__(self, top: int, bottom: int, samples: int) -> None:
        self.count = bottom - top
        self.samples = samples
        # Row r extends from r - 0.5 to r + 0.5.
        self.edges: Floats = np.arange(top, bottom + 1, dtype=np.float64) - 0.5
        self.middles: Floats = self.edges[:-1] + 0.5
        inside = (np.arange(samples) + 0.5) / samples
        self.queries: Floats = (self.edges[:-1, None] + inside).ravel()


class Layer:
    """A set of strips that are summed in one sweep.

    `first` is the index of the first strip's left border among the surveyed borders.
    """

    def __init__(self, strips: Sequence[Strip], first: int) -> None:
        self._borders = range(first, first + 2 * len(strips))
        self._strips = tuple(strips)
        self._grain_rows: NDArray[np.int64] = np.array([strip.grain for strip in strips], np.int64)

        def column(values: list[float]) -> Floats:
            return np.array(values, np.float64)[:, None]

        self._luma = column([strip.luma for strip in strips])
        high = [at for at, one in enumerate(strips) if one.left_up_m or one.right_up_m]
        self._high: NDArray[np.int64] = np.array(high, np.int64)
        self._grain_luma = column([strip.grain_luma for strip in strips])
        self.is_shiny = column([float(strip.is_shiny) for strip in strips])
        # Strips with a colour, and their borders.
        tinted = [at for at, strip in enumerate(strips) if strip.u or strip.v]
        self.tinted: NDArray[np.int64] = np.array(tinted, np.int64)
        self.tinted_borders: NDArray[np.int64] = np.array(
            [border for at in tinted for border in (2 * at, 2 * at + 1)], np.int64
        )
        self.u = column([strips[at].u for at in tinted])
        self.v = column([strips[at].v for at in tinted])

    def edges(self, view: Survey, band: Band, width: int) -> Floats:
        """Return the columns where borders cross rows, (2 k, rows * samples), 0..width."""
        edges = np.empty((len(self._borders), band.queries.size))
        for at, border in enumerate(self._borders):
            edges[at] = np.interp(band.queries, view.rows[border], view.columns[border])
        # Pixel i extends from i to i + 1.
        edges += 0.5
        return np.clip(edges, 0.0, float(width), out=edges)

    def amounts(self, view: Survey, s_m: float, band: Band, grain: Grain) -> tuple[Floats, Floats]:
        """Return the brightness that strips add to each row, and their share of it, (k, rows)."""
        nearness = np.empty((len(self._strips), band.edges.size))
        left = self._borders[::2]
        for at, border in enumerate(left):
            nearness[at] = np.interp(band.edges, view.rows[border], view.nearness_1pm)
        s_edges = s_m + 1.0 / nearness
        lengths = lengths_of(s_edges)
        # Strips end where the road is out of sight.
        share = band.edges[1:] - view.rows[left.start : left.stop : 2, :1]
        np.clip(share, 0.0, 1.0, out=share)
        # Far away in bends, upright strips would cover the road instead of the ground next to it.
        far = nearness[self._high, 1:] * _HIGH_TO_M - 1.0
        share[self._high] *= np.clip(far, 0.0, 1.0)
        for at, strip in enumerate(self._strips):
            if strip.on is not None:
                share[at] *= strip.on.share(s_edges[at], lengths[at])
            if strip.off is not None:
                share[at] *= 1.0 - strip.off.share(s_edges[at], lengths[at])
        amounts = grain.mean(self._grain_rows, s_edges, lengths)
        amounts *= self._grain_luma
        amounts += self._luma
        amounts *= share
        return amounts, share


class SweepBuffers:
    """The buffers of `sweep`, reused for all frames.

    Fresh memory would cost more than the computation, because the system clears it page by page.
    """

    def __init__(self, rows: int, width: int) -> None:
        self.width = width
        self._steps: NDArray[np.int32] = np.zeros((rows, width + 2), np.int32)
        self._sums: NDArray[np.int32] = np.zeros((rows, width), np.int32)
        self._picture: Floats32 = np.zeros((rows, width), np.float32)

    def steps(self, rows: int) -> NDArray[np.int32]:
        """Return the steps, (rows, width + 2), cleared to zeros."""
        steps = self._steps[:rows]
        steps.fill(0)
        return steps

    def summed(self, rows: int) -> Floats32:
        """Return the running sums of the steps, (rows, width); valid until the next call."""
        sums, picture = self._sums[:rows], self._picture[:rows]
        np.cumsum(self._steps[:rows, : self.width], axis=1, dtype=np.int32, out=sums)
        picture[...] = sums
        picture *= np.float32(1.0 / _ONE)
        return picture


def sweep(edges: Floats, amounts: Floats, base: Floats, buffers: SweepBuffers) -> Floats32:
    """Return the picture of strips over a base, (rows, width).

    The picture is valid until the next sweep with the same buffers.

    Args:
        edges: (2 k, rows * samples) columns where left and right borders cross the rows, 0..width.
        amounts: (k, rows) brightness that each strip adds.
        base: (rows,) brightness of the ground below all strips.
        buffers: buffers for the picture.
    """
    count, rows = amounts.shape
    samples = edges.shape[1] // rows
    steps = buffers.steps(rows)
    steps[:, 0] = np.rint(base * _ONE)
    pixel = edges.astype(np.int32)
    part = np.subtract(edges, pixel, dtype=np.float32)
    up = np.repeat(np.rint(amounts * (_ONE / samples)).astype(np.int32), samples, axis=1)
    step = np.empty((count, 2, rows * samples), np.int32)
    step[:, 0] = up
    np.negative(up, out=step[:, 1])
    step = step.reshape(part.shape)
    # Split each step between its pixel and the next; the two parts add up exactly.
    part *= step
    second = part.astype(np.int32)
    step -= second
    pixel += np.repeat(np.arange(rows, dtype=np.int32) * np.int32(buffers.width + 2), samples)
    flat, places = steps.ravel(), pixel.ravel()
    np.add.at(flat, places, step.ravel())
    places += 1
    np.add.at(flat, places, second.ravel())
    return buffers.summed(rows)


# Pictures with fewer rows than this are sampled twice per row.
_FINE_ROWS = 400
# Maximum height of structures along the edges, as a share of the camera's height.
_BELOW_LENS = 0.8
# A wet road mirrors the sky at grazing angles: from this inverse distance on, up to this share.
_SHINE_FROM_1PM = 0.125
_SHINE = 0.5
# Minimum brightness left where shadows overlap.
_DARKEST = 0.3


class Pixels(NamedTuple):
    """The ground's picture from row `top` down: luma over black, and U and V less 128 at half size.

    It is valid until the ground renders the next one.
    """

    top: int
    luma: Floats32
    u: Floats32
    v: Floats32

    @property
    def planes(self) -> tuple[Floats32, Floats32, Floats32]:
        """The luma, U and V planes."""
        return self.luma, self.u, self.v


class Ground:
    """Renders the ground of one camera."""

    def __init__(self, view: View, lanes: Lanes, scenery: Scenery, lighting: Lighting) -> None:
        self._lens = view.lens
        self._lighting = lighting
        self._base = (scenery.verge[0] - BLACK, scenery.verge[1] - 128.0, scenery.verge[2] - 128.0)
        self._shine = max(0.0, lighting.sky_low[0] - scenery.asphalt[0]) * _SHINE * lighting.wet
        self._grain = Grain(np.random.default_rng((scenery.texture, 3)), GRAIN_ROWS)
        strips = strips_of(lanes, scenery, _BELOW_LENS * view.height_m)
        shades = shade_strips(lanes, scenery, lighting.sun)
        every = (*strips, *shades)
        # Offsets and heights of the borders, left and right of each strip.
        self.offset_m: Floats = np.array([at for one in every for at in (one.left_m, one.right_m)])
        self.up_m: Floats = np.array(
            [at for one in every for at in (one.left_up_m, one.right_up_m)]
        )
        self._layer = Layer(strips, 0)
        self._shades = Layer(shades, 2 * len(strips)) if shades else None
        self._beam = beam_picture(view) if lighting.beam else None
        size = (self._lens.height, self._lens.width)
        self._buffers = SweepBuffers(*size)
        self._shade_buffers = SweepBuffers(*size) if shades else self._buffers
        self._u_buffers, self._v_buffers = (
            SweepBuffers(size[0] // 2, size[1] // 2) for _ in range(2)
        )
        self._samples = 2 if self._lens.height < _FINE_ROWS else 1

    def paint(self, survey: Survey, s_m: float) -> Pixels:
        """Return the ground from the highest row of the skyline down.

        The survey must contain the borders of this ground.
        """
        lens, lighting = self._lens, self._lighting
        top = math.floor(float(survey.skyline.min())) // 2 * 2
        band = Band(min(max(top, 0), lens.height - 2), lens.height, self._samples)
        nearness = np.interp(band.middles, survey.rows[-1], survey.nearness_1pm)
        seen = lighting.seen(nearness)
        edges = self._layer.edges(survey, band, lens.width)
        amounts, share = self._layer.amounts(survey, s_m, band, self._grain)
        if self._shine:
            grazing = 1.0 - np.minimum(nearness / _SHINE_FROM_1PM, 1.0)
            amounts += self._layer.is_shiny * share * (self._shine * grazing)
        haze = (lighting.haze[0] - BLACK) * (1.0 - seen)
        if self._beam is None:
            bright = lighting.ambient * seen
            luma = sweep(edges, amounts * bright, self._base[0] * bright + haze, self._buffers)
            self._darken(luma, survey, s_m, band)
        else:
            luma = sweep(edges, amounts * seen, self._base[0] * seen, self._buffers)
            luma *= lighting.ambient + lighting.beam * self._beam[-band.count :]
            luma += haze[:, None].astype(np.float32)
        u, v = self._colours(edges, share * seen, seen)
        return Pixels(lens.height - band.count, luma, u, v)

    def _darken(self, luma: Floats32, survey: Survey, s_m: float, band: Band) -> None:
        """Multiply the ground by the light that shadows leave."""
        if self._shades is None:
            return
        edges = self._shades.edges(survey, band, self._lens.width)
        amounts, _ = self._shades.amounts(survey, s_m, band, self._grain)
        light = sweep(edges, amounts, np.ones(band.count), self._shade_buffers)
        np.clip(light, np.float32(_DARKEST), np.float32(1.0), out=light)
        luma *= light

    def _colours(self, edges: Floats, share: Floats, seen: Floats) -> tuple[Floats32, Floats32]:
        """Return U and V of the ground less 128, at half size."""
        layer, lighting = self._layer, self._lighting
        tinted = share[layer.tinted]
        amounts = 0.5 * lighting.chroma * (tinted[:, ::2] + tinted[:, 1::2])
        seen = 0.5 * (seen[::2] + seen[1::2])
        borders = edges[layer.tinted_borders].reshape(-1, amounts.shape[1], 2 * self._samples)
        middle = self._samples
        half = 0.25 * (borders[:, :, middle - 1] + borders[:, :, middle])
        planes = []
        buffer_pair = (self._u_buffers, self._v_buffers)
        for plane, tone, buffers in zip((1, 2), (layer.u, layer.v), buffer_pair, strict=True):
            haze = (lighting.haze[plane] - 128.0) * (1.0 - seen)
            base = self._base[plane] * lighting.chroma * seen + haze
            planes.append(sweep(half, tone * amounts, base, buffers))
        return planes[0], planes[1]
