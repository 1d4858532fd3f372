"""A simulated world: a road with its lanes, and its appearance.

`random_world` makes a world from a seed. Lateral offsets are relative to the reference line, the
middle of the carriageway of our direction, and positive to the right.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tools.simulator.world.road import SIGHT_M, Road, straights_and_arcs
from tools.simulator.world.scenery import Scenery, random_scenery

# --- Lanes of our carriageway, markings between them, and edges of the asphalt -------------------

# Maximum number of lanes of our direction.
WIDEST_COUNT = 4


class MarkingKind(StrEnum):
    """The pattern of a lane marking."""

    SOLID = "solid"
    DASHED = "dashed"
    DOUBLE = "double"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Marking:
    """One line along the road.

    Attributes:
        offset_m: offset of its centre from the reference line, positive to the right.
        kind: pattern of the paint.
        is_yellow: whether the paint is yellow rather than white.
        wear: share of worn-off paint, 0..1.
        gaps: stretches of arc length without paint, as (begin, end) in order.
        line_m: width of one line; a double line is two lines, one line width apart.
        dash_m: length of a dash.
        period_m: distance between the beginnings of two dashes; dashes begin at its multiples.
    """

    offset_m: float
    kind: MarkingKind
    is_yellow: bool = False
    wear: float = 0.0
    gaps: tuple[tuple[float, float], ...] = ()
    line_m: float = 0.15
    dash_m: float = 3.0
    period_m: float = 12.0


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of our direction, numbered from 0 at the left.

    Attributes:
        width_m: width of each lane.
        count: number of lanes.
        markings: the count + 1 borders of the lanes, left to right.
        left_edge_m, right_edge_m: offsets of the edges of the asphalt, oncoming lanes included.
        opposite: markings of oncoming lanes, which are left of ours, left to right.
    """

    width_m: float
    count: int
    markings: tuple[Marking, ...]
    left_edge_m: float
    right_edge_m: float
    opposite: tuple[Marking, ...] = ()

    @property
    def painted(self) -> tuple[Marking, ...]:
        """All markings of the road, left to right."""
        return (*self.opposite, *self.markings)

    def centre_m(self, lane: int) -> float:
        """Return the offset of a lane's centre."""
        return (lane - 0.5 * (self.count - 1)) * self.width_m

    def lane_at(self, offset_m: float) -> int:
        """Return the lane at an offset; off the carriageway, the nearest one."""
        lane = int(offset_m / self.width_m + 0.5 * self.count + WIDEST_COUNT) - WIDEST_COUNT
        return min(max(lane, 0), self.count - 1)

    def beside(self, lane: int) -> tuple[Marking | None, ...]:
        """Return the model's four lines for a lane: far left, left, right, far right.

        A far line that does not exist is None.
        """
        padded = (None, *self.painted, None)
        first = len(self.opposite) + lane
        return padded[first : first + 4]


def random_lanes(rng: np.random.Generator, length_m: float, speed_limit_mps: float) -> Lanes:
    """Return the lanes of a random road.

    Gaps in the paint are drawn up to `length_m`; with the same generator state, the gaps of a
    longer road begin with those of a shorter one. Fast roads have more and wider lanes, and more
    paint.
    """
    look, breaks = rng.spawn(2)
    fast = min(max((speed_limit_mps - 12.0) / 20.0, 0.0), 1.0)
    is_two_way = look.random() > 0.2 + 0.75 * fast
    count = _lane_count(look, fast, is_two_way)
    width = min(2.7 + 0.55 * fast + 0.65 * look.random(), 3.9)
    border = 0.5 * count * width
    shoulders = _shoulder(look, fast), _shoulder(look, fast)
    oncoming = width * (2 if count > 1 and look.random() < 0.5 else 1) if is_two_way else 0.0
    # Only slow roads are unpainted. A single worn line is more frequent than worn lines throughout.
    is_bare = look.random() < 0.12 * (1.0 - fast)
    has_edge_lines = look.random() < 0.55 + 0.45 * fast
    wear = 0.7 * look.random() * look.random()
    style = look.random()
    dash, period = ((3.0, 12.0), (3.0, 9.0), (6.0, 18.0), (4.0, 12.0))[int(4.0 * style)]
    line = 0.1 + 0.1 * look.random()
    is_yellow_left = look.random() < 0.45
    is_double = look.random() < 0.4
    is_dashed_middle = look.random() < 0.5
    outer = MarkingKind.SOLID if has_edge_lines else MarkingKind.NONE
    markings = []
    for index in range(count + 1):
        if 0 < index < count:
            kind = MarkingKind.SOLID if look.random() < 0.1 else MarkingKind.DASHED
        elif index == 0 and is_two_way:
            kind = MarkingKind.DOUBLE if is_double else MarkingKind.SOLID
            kind = MarkingKind.DASHED if is_dashed_middle and count == 1 else kind
        else:
            kind = outer
        kind = MarkingKind.NONE if is_bare else kind
        own_wear = wear if look.random() < 0.7 else wear + (1.0 - wear) * look.random()
        markings.append(
            Marking(
                offset_m=index * width - border,
                kind=kind,
                is_yellow=index == 0 and is_yellow_left,
                wear=min(own_wear, 1.0),
                gaps=_gaps(breaks.spawn(1)[0], length_m),
                line_m=line,
                dash_m=dash,
                period_m=period,
            )
        )
    opposite = []
    if is_two_way:
        far = MarkingKind.NONE if is_bare else outer
        opposite.append(Marking(-border - oncoming, far, wear=wear, line_m=line))
        if oncoming > 1.5 * width:
            inner = MarkingKind.NONE if is_bare else MarkingKind.DASHED
            dashes = Marking(-border - width, inner, False, wear, (), line, dash, period)
            opposite.append(dashes)
    return Lanes(
        width_m=width,
        count=count,
        markings=tuple(markings),
        left_edge_m=-border - oncoming - shoulders[0],
        right_edge_m=border + shoulders[1],
        opposite=tuple(opposite),
    )


def _lane_count(rng: np.random.Generator, fast: float, is_two_way: bool) -> int:
    drawn = rng.random()
    if is_two_way:
        return 1 if drawn < 0.75 else 2
    return 1 + int((0.6 + 0.4 * fast) * WIDEST_COUNT * drawn) if fast < 0.5 else 2 + int(3 * drawn)


def _shoulder(rng: np.random.Generator, fast: float) -> float:
    """Return the width of the asphalt beyond the outermost line, m."""
    return float(0.15 + (0.8 + 3.2 * fast) * rng.random() * rng.random())


def _gaps(rng: np.random.Generator, length_m: float) -> tuple[tuple[float, float], ...]:
    """Return stretches without paint, 10 to 130 m long; half of the lines have none."""
    gaps = []
    spacing = 250.0 + 1500.0 * rng.random()
    at = 1e9 if rng.random() < 0.5 else spacing * rng.random()
    while at < length_m:
        length = 10.0 + 120.0 * rng.random() * rng.random()
        gaps.append((float(at), float(at + length)))
        at += length + spacing * (0.3 + rng.random())
    return tuple(gaps)


# Ranges of the speed limit in towns, on rural roads and on motorways, m/s, and the cumulative
# shares of the first two.
_LIMITS_MPS = ((12.0, 17.0), (17.0, 27.0), (27.0, 36.0))
_SHARES = (0.2, 0.65)


@dataclass(frozen=True, slots=True)
class World:
    """A random world, determined by its seed. Its lanes are the same along the whole road."""

    seed: int
    road: Road
    lanes: Lanes
    scenery: Scenery
    speed_limit_mps: float


def random_world(seed: int, length_m: float) -> World:
    """Return the world of a seed, with a road beyond `length_m`.

    A longer world begins with the shorter one, bit by bit. The seed must not be negative.
    """
    kind, plan, across, look = (np.random.default_rng((seed, part)) for part in range(4))
    drawn = kind.random()
    low, high = _LIMITS_MPS[0 if drawn < _SHARES[0] else 1 if drawn < _SHARES[1] else 2]
    limit = low + (high - low) * kind.random()
    return World(
        seed=seed,
        road=straights_and_arcs(plan, length_m, limit),
        lanes=random_lanes(across, length_m + SIGHT_M, limit),
        scenery=random_scenery(look),
        speed_limit_mps=limit,
    )
