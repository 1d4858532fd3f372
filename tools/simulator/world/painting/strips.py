"""The strips of the ground: bands along the road, each with a colour and a pattern.

A pattern is the grain of a surface, or a list of stretches along the road, such as dashes, gaps in
the paint, or shadows. `strips_of` makes the strips of a road; the ground renders them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.simulator.world.curves import Floats, through_knots
from tools.simulator.world.scenery import KERB, RAIL, WALL, Colour, Scenery
from tools.simulator.world.world import Lanes, Marking, MarkingKind

# Length of a grain cell along the road, and number of cells before the grain repeats.
_CELL_M = 0.3
_CELLS = 4096
# Scales of the grain: cells per knot, and amplitude. They repeat without a jump.
_COARSE = ((1, 0.6), (4, 0.9), (16, 0.7), (128, 0.6))
_SHORTEST_M = 1e-6


class Grain:
    """Random brightness along the road, about -1..1, with one row per surface."""

    def __init__(self, rng: np.random.Generator, rows: int) -> None:
        at = np.arange(_CELLS, dtype=np.float64)
        values = np.zeros((rows, _CELLS))
        for row in range(rows):
            for cells, share in _COARSE:
                knots = rng.integers(-64, 65, _CELLS // cells) / 64.0
                knots = np.concatenate([knots, knots[:1]])
                values[row] += share * (
                    knots[:-1] if cells == 1 else through_knots(knots, cells, at)
                )
        # Make the sum of each row 0.
        sums = np.cumsum(values, axis=1)
        values -= sums[:, -1:] / _CELLS
        self._values = np.concatenate([values, values[:, :1]], axis=1).ravel()
        # The integral of the grain up to each cell; the mean of a stretch needs two of its values.
        until = np.zeros((rows, _CELLS + 1))
        until[:, 1:] = np.cumsum(values, axis=1)
        self._until = until.ravel()

    def mean(self, rows: NDArray[np.int64], s_edges: Floats, length_m: Floats) -> Floats:
        """Return the mean grain of each stretch.

        `rows` (k,) are the grain rows, `s_edges` (k, n + 1) decreasing arc lengths between the
        stretches, and `length_m` (k, n) their positive lengths.
        """
        cells = s_edges * (1.0 / _CELL_M)
        cells -= np.floor(cells * (1.0 / _CELLS)) * _CELLS
        index = np.minimum(cells.astype(np.int64), _CELLS - 1)
        cells -= index
        index += rows[:, None] * (_CELLS + 1)
        cells *= self._values[index]
        cells += self._until[index]
        mean = cells[:, :-1] - cells[:, 1:]
        mean *= _CELL_M / length_m
        # The sum of a row is 0, so a stretch may extend beyond the end of the table.
        return np.clip(mean, -2.5, 2.5, out=mean)


class Stretches:
    """Intervals of arc length at which a strip is present.

    Begins increase, and each end is before the next begin. The pattern of 0..`period_m` repeats
    forever; with a period of 0 it occurs once.
    """

    def __init__(
        self,
        begins: Sequence[float] | Floats,
        ends: Sequence[float] | Floats,
        period_m: float = 0.0,
    ) -> None:
        pairs = np.stack([np.asarray(begins, np.float64), np.asarray(ends, np.float64)], axis=1)
        lengths = np.cumsum(pairs[:, 1] - pairs[:, 0])
        until = np.stack([np.concatenate([[0.0], lengths[:-1]]), lengths], axis=1)
        self._s = pairs.ravel()
        self._until = until.ravel()
        self._period_m = period_m
        self._total_m = float(lengths[-1])

    def share(self, s_edges: Floats, length_m: Floats) -> Floats:
        """Return the covered share of each stretch between decreasing edges (n + 1,), (n,)."""
        if self._period_m:
            whole = np.floor(s_edges * (1.0 / self._period_m))
            until = np.interp(s_edges - whole * self._period_m, self._s, self._until)
            until += whole * self._total_m
        else:
            until = np.interp(s_edges, self._s, self._until)
        return np.asarray((until[:-1] - until[1:]) / length_m)


def random_stretches(
    rng: np.random.Generator, share: float, length_m: tuple[float, float], period_m: float = 1500.0
) -> Stretches:
    """Return repeated random stretches that cover a share of the road.

    `share` is 0..1; `length_m` is the minimum and the maximum length of a stretch.
    """
    low, high = length_m
    free = 0.5 * (low + high) * (1.0 - share) / max(share, 1e-3)
    begins: list[float] = []
    ends: list[float] = []
    at = 2.0 * free * float(rng.random())
    while at < period_m - high or not begins:
        end = at + low + (high - low) * float(rng.random())
        begins.append(at)
        ends.append(end)
        at = end + 0.05 + 2.0 * free * float(rng.random())
    return Stretches(begins, ends, max(period_m, ends[-1]))


def lengths_of(s_edges: Floats) -> Floats:
    """Return the positive lengths between decreasing edges (..., n + 1), as (..., n)."""
    return np.maximum(s_edges[..., :-1] - s_edges[..., 1:], _SHORTEST_M)


# --- Strips of the ground ------------------------------------------------------------------------

# Rows of grain: asphalt, shoulders, near and far ground on both sides, gravel, paint, wheel tracks.
# The last name is the number of rows.
(
    GRAIN_ASPHALT,
    GRAIN_SHOULDER,
    GRAIN_LEFT,
    GRAIN_RIGHT,
    GRAIN_FAR_LEFT,
    GRAIN_FAR_RIGHT,
    GRAIN_GRAVEL,
    GRAIN_PAINT,
    GRAIN_TRACK,
    GRAIN_ROWS,
) = range(10)

_CONCRETE: Colour = (142.0, 126.0, 129.0)
_STEEL: Colour = (138.0, 130.0, 127.0)
_GRAVEL: Colour = (128.0, 124.0, 130.0)
# Distances from the edge of the asphalt: rails, and the borders of two bands of ground.
_RAIL_BEYOND_M = 0.45
_NEAR_BAND_M, _FAR_BAND_M = 5.0, 24.0
# Wheel tracks: distance from the lane's centre, half width, and half width of the oil in between.
_TRACK_M, _TRACK_HALF_M, _OIL_HALF_M = 0.75, 0.22, 0.36
# Shadows: approximate width of a band, and the distance after which they repeat.
_SHADE_BAND_M, _SHADE_PERIOD_M = 0.7, 1200.0
# Length and width of a stud between dashes.
_STUD_M = 0.12
# Heights of structures along the edge: bottom and top of a rail, a wall, a kerb.
_RAIL_M, _WALL_M, _KERB_M = (0.44, 0.76), 0.82, 0.13


@dataclass(frozen=True, slots=True)
class Strip:
    """A band along the road. Its values add to those of all strips below it.

    Attributes:
        left_m, right_m: lateral offsets of its borders.
        luma, u, v: differences that it adds to brightness and chroma.
        grain: row of the grain table.
        grain_luma: amplitude of the grain.
        left_up_m, right_up_m: heights of its borders above the road.
        on: stretches at which it is present; None for everywhere.
        off: stretches at which it is absent.
        is_shiny: whether it mirrors the sky when wet.
    """

    left_m: float
    right_m: float
    luma: float
    u: float = 0.0
    v: float = 0.0
    grain: int = GRAIN_ASPHALT
    grain_luma: float = 0.0
    left_up_m: float = 0.0
    right_up_m: float = 0.0
    on: Stretches | None = None
    off: Stretches | None = None
    is_shiny: bool = False


def strips_of(lanes: Lanes, scenery: Scenery, highest_m: float) -> tuple[Strip, ...]:
    """Return the strips of a road, lowest first.

    Structures along the road are cut off at `highest_m`, which is below the camera.
    """
    rng = np.random.default_rng((scenery.texture, 1))
    return (
        *_verges(lanes, scenery, rng),
        *_asphalt(lanes, scenery, rng),
        *(strip for marking in lanes.painted for strip in _marking(marking, scenery)),
        *_rail(lanes.right_edge_m, scenery, 0, highest_m),
        *_rail(lanes.left_edge_m, scenery, 1, highest_m),
    )


def _over(colour: Colour, below: Colour) -> tuple[float, float, float]:
    return colour[0] - below[0], colour[1] - below[1], colour[2] - below[2]


def _verges(lanes: Lanes, scenery: Scenery, rng: np.random.Generator) -> list[Strip]:
    strips = []
    grain = scenery.verge_grain
    for edge, side, near, far in (
        (lanes.left_edge_m, -1.0, GRAIN_LEFT, GRAIN_FAR_LEFT),
        (lanes.right_edge_m, 1.0, GRAIN_RIGHT, GRAIN_FAR_RIGHT),
    ):
        first, second = edge + side * _NEAR_BAND_M, edge + side * _FAR_BAND_M
        drawn = (grain * (rng.random(4) - 0.5)).tolist()
        tint, tone = 2.2 * drawn[0], 0.5 * drawn[1]
        for inner, outer, row, luma, colour in (
            (edge, first, near, tint, tone),
            (first, second, far, 2.2 * drawn[2], 0.5 * drawn[3]),
        ):
            low, high = min(inner, outer), max(inner, outer)
            strips.append(Strip(low, high, luma, colour, -colour, row, grain_luma=grain))
        # Walls and kerbs are drawn over the plain ground, without gravel.
        if scenery.gravel_m and scenery.rail[side < 0.0] < WALL:
            outer = edge + side * scenery.gravel_m
            low, high = min(edge, outer), max(edge, outer)
            luma, u, v = _over(_GRAVEL, scenery.verge)
            over = (luma - tint, u - tone, v + tone)
            strips.append(Strip(low, high, *over, GRAIN_GRAVEL, grain_luma=0.5 * grain))
    return strips


def _asphalt(lanes: Lanes, scenery: Scenery, rng: np.random.Generator) -> list[Strip]:
    left, right = lanes.left_edge_m, lanes.right_edge_m
    luma, u, v = _over(scenery.asphalt, scenery.verge)
    grain = scenery.asphalt_grain
    strips = [
        Strip(left, right, luma, u, v, GRAIN_ASPHALT, grain_luma=grain, is_shiny=True),
    ]
    first, last = lanes.painted[0].offset_m, lanes.painted[-1].offset_m
    for low, high in ((left, first - 0.08), (last + 0.08, right)):
        if high - low > 0.3:
            strips.append(
                Strip(low, high, scenery.shoulder, grain=GRAIN_SHOULDER, grain_luma=grain)
            )
    for lane in range(lanes.count):
        centre, half = lanes.centre_m(lane), 0.5 * lanes.width_m - 0.1
        tracks = scenery.tracks * (0.5 + float(rng.random()))
        for side in (-_TRACK_M, _TRACK_M):
            middle = centre + side
            strips.append(
                Strip(middle - _TRACK_HALF_M, middle + _TRACK_HALF_M, tracks, grain=GRAIN_TRACK)
            )
        strips.append(Strip(centre - _OIL_HALF_M, centre + _OIL_HALF_M, -tracks))
        if scenery.patches:
            tone = 28.0 * (float(rng.random()) - 0.6)
            mended = random_stretches(rng, scenery.patches, (2.0, 60.0))
            strips.append(Strip(centre - half, centre + half, tone, on=mended))
    if scenery.cracks:
        share = scenery.cracks * 0.05 / 100.0
        across = random_stretches(rng, share, (0.02, 0.08))
        strips.append(Strip(left, right, -34.0, on=across))
        for _ in range(2):
            at = left + (right - left) * float(rng.random())
            along = random_stretches(rng, min(0.04 * scenery.cracks, 0.7), (3.0, 40.0))
            strips.append(Strip(at, at + 0.035, -36.0, on=along))
    return strips


def _marking(marking: Marking, scenery: Scenery) -> list[Strip]:
    if marking.kind == MarkingKind.NONE or marking.wear >= 1.0:
        return []
    new: Colour = scenery.yellow if marking.is_yellow else (scenery.paint, 128.0, 128.0)
    left = 1.0 - marking.wear
    luma, u, v = (left * part for part in _over(new, scenery.asphalt))
    on = None
    if marking.kind == MarkingKind.DASHED:
        on = Stretches([0.0], [marking.dash_m], marking.period_m)
    gaps = marking.gaps
    off = Stretches([gap[0] for gap in gaps], [gap[1] for gap in gaps]) if gaps else None
    half = 0.5 * marking.line_m
    apart = marking.line_m
    middles = [-apart, apart] if marking.kind == MarkingKind.DOUBLE else [0.0]
    # Old paint is patchy.
    grain = (0.08 + 1.2 * marking.wear * left) * luma
    over = (luma, u, v, GRAIN_PAINT, grain)
    strips = [
        Strip(middle - half, middle + half, *over, on=on, off=off)
        for middle in (marking.offset_m + aside for aside in middles)
    ]
    if scenery.has_studs and marking.kind == MarkingKind.DASHED:
        begin = 0.5 * (marking.dash_m + marking.period_m)
        dots = Stretches([begin], [begin + _STUD_M], marking.period_m)
        at = marking.offset_m - 0.5 * _STUD_M
        strips.append(Strip(at, at + _STUD_M, scenery.paint - scenery.asphalt[0], on=dots))
    return strips


def _rail(edge_m: float, scenery: Scenery, side: int, highest_m: float) -> list[Strip]:
    """Return the strips of the structure along an edge; side 0 is the right one."""
    kind = scenery.rail[side]
    if not kind:
        return []
    sign = -1.0 if side else 1.0
    beyond = 0.0 if kind == KERB else _RAIL_BEYOND_M
    at = edge_m + sign * beyond
    luma, u, v = _over(_STEEL if kind == RAIL else _CONCRETE, scenery.verge)

    def upright(low_m: float, high_m: float, luma: float, u: float, v: float) -> Strip:
        # The top of an upright strip appears further outside than its foot.
        heights = min(low_m, highest_m), min(high_m, highest_m)
        left, right = heights if sign > 0.0 else heights[::-1]
        return Strip(at, at, luma, u, v, GRAIN_GRAVEL, 2.0, left_up_m=left, right_up_m=right)

    if kind == KERB:
        return [upright(0.0, _KERB_M, luma, u, v)]
    if kind == WALL:
        # The sloped foot of the wall catches the light, and its top is a bright line.
        return [
            upright(0.0, _WALL_M, luma - 30.0, u, v),
            upright(0.0, 0.06, -24.0, 0.0, 0.0),
            upright(0.08, 0.28, 18.0, 0.0, 0.0),
            upright(_WALL_M - 0.05, _WALL_M, 34.0, 0.0, 0.0),
        ]
    low, high = _RAIL_M
    middle, shade = 0.5 * (low + high), at + 0.3 * sign
    return [
        # Shadow below the rail, the rail itself, and the fold along its middle.
        Strip(min(at, shade), max(at, shade), -12.0),
        upright(low, high, luma, u, v),
        upright(middle - 0.03, middle + 0.03, -30.0, 0.0, 0.0),
    ]


def shade_strips(lanes: Lanes, scenery: Scenery, depth: float) -> tuple[Strip, ...]:
    """Return shadows on the road; a strip's luma is added to the light, whose base is 1.

    `depth`, 0..1, is the darkness of the shadows.
    """
    if scenery.shadows <= 0.0 or depth <= 0.0:
        return ()
    rng = np.random.default_rng((scenery.texture, 2))
    left, right = lanes.left_edge_m - 3.0, lanes.right_edge_m + 3.0
    count = min(max(round((right - left) / _SHADE_BAND_M), 4), 24)
    edges = [left + (right - left) * (edge / count) for edge in range(count + 1)]
    pieces = _shadows(rng, edges, scenery.shadows)
    dark = -0.58 * depth
    bands = []
    for low, high, band in zip(edges[:-1], edges[1:], pieces, strict=True):
        if band:
            on = Stretches([one[0] for one in band], [one[1] for one in band], _SHADE_PERIOD_M)
            bands.append(Strip(low, high, dark, on=on))
    # Shadows of objects that span the road: poles, branches, bridges.
    across = random_stretches(rng, 0.05 * scenery.shadows, (0.15, 1.0))
    return (*bands, Strip(left - 20.0, right + 20.0, 0.5 * dark, on=across))


def _shadows(
    rng: np.random.Generator, edges_m: list[float], share: float
) -> list[list[tuple[float, float]]]:
    """Return the shaded stretches of each band between two edges; tree crowns are ellipses."""
    pieces: list[list[tuple[float, float]]] = [[] for _ in edges_m[:-1]]
    left, right = edges_m[0], edges_m[-1]
    wide = right - left
    # Number of crowns, of about 60 m^2 each, that cover the share.
    count = round(share * 1.3 * _SHADE_PERIOD_M * wide / 60.0)
    places = np.sort(rng.random(count) * (_SHADE_PERIOD_M - 40.0)) + 20.0
    for at in places.tolist():
        along, across, side, lean = rng.random(4).tolist()
        along, across = 1.0 + 7.0 * along * along, 1.2 + 0.3 * wide * across
        # Trees stand next to the road, so most shadows reach in from one side.
        inside = 0.9 * wide * abs(2.0 * abs(side - 0.5) - 0.5)
        middle = left + inside if side < 0.5 else right - inside
        for band, own in enumerate(pieces):
            off = (0.5 * (edges_m[band] + edges_m[band + 1]) - middle) / across
            if off * off >= 1.0:
                continue
            half = along * math.sqrt(1.0 - off * off)
            centre = at + 2.0 * (lean - 0.5) * off * across
            begin = max(centre - half, own[-1][1] + 0.01 if own else 0.0)
            end = min(centre + half, _SHADE_PERIOD_M - 0.1)
            if end > begin + 0.05:
                own.append((begin, end))
    return pieces
