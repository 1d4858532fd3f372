"""A car that follows a script through the simulated world; all of it is known exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools.render.script import SPEED_LIMIT_MPS, TICKS_PER_S, LaneChange, Script
from tools.world.body import Body, attitudes
from tools.world.curves import Floats, arctangent, ease, ease_slope
from tools.world.expert import LANE_CHANGE_S
from tools.world.road import GRID_M
from tools.world.scenery import PLAIN
from tools.world.traffic import Vehicle
from tools.world.world import Lanes, Marking, MarkingKind, World

# Three lanes of the usual width of a highway.
LANE_WIDTH_M = 3.6
_KINDS = (MarkingKind.SOLID, MarkingKind.DASHED, MarkingKind.DASHED, MarkingKind.SOLID)
LANES = Lanes(
    width_m=LANE_WIDTH_M,
    count=3,
    markings=tuple(
        Marking((index - 1.5) * LANE_WIDTH_M, kind, is_yellow=index == 0)
        for index, kind in enumerate(_KINDS)
    ),
    left_edge_m=-6.6,
    right_edge_m=6.6,
)
# By day, without noise: noise mostly busies the encoder.
SCENERY = replace(
    PLAIN,
    asphalt=(84.0, 128.0, 128.0),
    verge=(100.0, 108.0, 122.0),
    haze_m=300.0,
    asphalt_grain=2.0,
    verge_grain=5.0,
    post_m=25.0,
    trees=0.7,
    signs=2.0,
)
# The car ahead, a blue one: width, height, length.
_LEAD_SIZE_M, _LEAD_PAINT = (1.82, 1.46, 4.5), 9
# Place, heading and speed among the fields of a body.
_TRACK = [2, 3, 4, 5, 8]
# A lane change: the blinker, then the driver's hand on the wheel, then the change.
BLINKER_LEAD_S = 1.5
NUDGE_S = (-0.4, 0.6)


class Moment(NamedTuple):
    """One moment of a drive.

    Attributes:
        blinker: ``LEFT``, ``RIGHT`` or 0; `nudge` the same for the driver's hand at the wheel.
    """

    body: Body
    lead: Vehicle
    blinker: int
    nudge: int


class ScriptedDrive:
    """Knows what is where at any tick of 10 ms.

    The world has texture, trees and hills of the script's seed.
    """

    def __init__(self, script: Script) -> None:
        road, changes = script.road, script.lane_changes
        scenery = replace(SCENERY, texture=script.seed)
        self.world = World(script.seed, road, LANES, scenery, SPEED_LIMIT_MPS)
        s, driven = road.s_m, script.driven_m
        offset, slope = script.wobble_m.copy(), np.gradient(script.wobble_m, GRID_M)
        for change in changes:
            # By distance: the car ahead has changed there before us.
            tick = min(round(change.start_s * TICKS_PER_S), driven.size - 1)
            length = LANE_CHANGE_S * script.speed_mps[tick]
            t = (s - driven[tick]) / length
            offset += change.side * LANE_WIDTH_M * ease(t)
            slope += change.side * LANE_WIDTH_M / length * ease_slope(t)
        # The path on the road's grid, then at each tick.
        place = road.places(s, offset)
        heading = road.heading_rad + arctangent(slope / (1.0 - road.curvature_1pm * offset))
        steps = np.sqrt(sum(np.diff(axis) ** 2 for axis in place))
        travelled = np.concatenate([[0.0], np.cumsum(steps)])
        travelled -= np.interp(0.0, s, travelled)
        angles = (*attitudes(road, s, offset, heading), heading)
        curvature = np.gradient(heading) / np.gradient(travelled)
        here = np.interp(driven, travelled, s)
        there = here + script.gap_m
        lead_speed = np.gradient(np.interp(there, s, travelled)) * TICKS_PER_S
        speeds = (script.speed_mps, lead_speed)
        gain, lead_gain = (np.gradient(speed) * TICKS_PER_S for speed in speeds)
        lead_offset = np.interp(there, s, offset)
        offset, x, y, z, pitch, roll, heading, curvature = (
            np.interp(here, s, column) for column in (offset, *place, *angles, curvature)
        )
        self._bodies = np.stack(
            [here, offset, x, y, z, heading, pitch, roll, script.speed_mps, gain, curvature],
            axis=1,
        )
        self._leads = np.stack([there, lead_offset, lead_speed, lead_gain], axis=1)
        self._blinker = _sides(changes, driven.size, (-BLINKER_LEAD_S, LANE_CHANGE_S))
        self._nudge = _sides(changes, driven.size, NUDGE_S)

    def moment(self, tick: int) -> Moment:
        """Return what is where at a tick."""
        s, offset, speed, gain = self._leads[tick].tolist()
        return Moment(
            Body(*self._bodies[tick].tolist()),
            Vehicle(s, offset, speed, gain, *_LEAD_SIZE_M, _LEAD_PAINT),
            int(self._blinker[tick]),
            int(self._nudge[tick]),
        )

    def ahead(self, tick: int, times_s: Floats) -> Floats:
        """Return x, y, z, heading and speed of the car at times from a tick on, (5, n).

        Place and heading are those in the world, z that of the road.
        """
        at = tick + times_s * TICKS_PER_S
        first = at.astype(np.int64)
        before, after = self._bodies[first], self._bodies[first + 1]
        rows = before + (after - before) * (at - first)[:, None]
        return np.asarray(rows.T[_TRACK])


def _sides(
    changes: tuple[LaneChange, ...], ticks: int, span_s: tuple[float, float]
) -> NDArray[np.int8]:
    """Return the side of the change at each tick: from so long after its begin to so long; or 0."""
    sides = np.zeros(ticks, np.int8)
    for change in changes:
        first, last = (max(0, round((change.start_s + at) * TICKS_PER_S)) for at in span_s)
        sides[first:last] = change.side
    return sides
