"""Renders objects on and along the road: cars, posts, lamps, signs and trees.

Objects are projected to their position in the picture and drawn as cards, boxes and sides, far ones
first. A crest of the road hides their lower parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tools.simulator.world.curves import Floats
from tools.simulator.world.painting.backdrop import Picture
from tools.simulator.world.painting.cards import (
    PLANES,
    Card,
    Frame,
    Lit,
    Side,
    stamp,
    stamp_box,
    stamp_side,
)
from tools.simulator.world.painting.cars import MARGIN, CarCards
from tools.simulator.world.painting.ground import Survey
from tools.simulator.world.painting.light import Lighting
from tools.simulator.world.road import Road
from tools.simulator.world.traffic import Vehicle
from tools.simulator.world.view import Sight
from tools.simulator.world.world import World

# Objects closer to the lens than this are not drawn.
_NEAREST_M = 0.8
# Distances up to which each kind of object is drawn.
_CARS_TO_M, _POSTS_TO_M, _TREES_TO_M, _SIGNS_TO_M, _LAMPS_TO_M = 260.0, 110.0, 130.0, 160.0, 160.0
# Deceleration beyond which the brake lamps are lit.
_BRAKE_MPS2 = -0.7
# Random properties of trees and signs repeat after this many objects.
_TABLE = 256
_TREE_KINDS = 4
_TREE_PX = 64
_POST, _POLE = (170.0, 0.0, 0.0), (86.0, 1.0, 0.0)
# Sign boards: colour (brightness, U and V less 128), width and height in metres.
_BOARDS = (
    ((190.0, 0.0, 0.0), 0.7, 0.7),
    ((140.0, -66.0, 20.0), 0.9, 0.9),
    ((60.0, 34.0, -16.0), 1.6, 1.1),
    ((62.0, -10.0, -28.0), 2.2, 1.4),
    ((70.0, -10.0, 62.0), 0.75, 0.7),
)
_BOARD_FOOT_M = 1.7


class _Upright(NamedTuple):
    """A flat object that faces the camera, at a position on the road.

    `half_m` is half of its width; `foot_m` and `top_m` are heights above the road. `look` is a
    sprite or a colour.
    """

    s_m: float
    offset_m: float
    half_m: float
    foot_m: float
    top_m: float
    look: Card | tuple[float, float, float]


class _Corners(NamedTuple):
    """Six points of an object, in pixels and in metres right, down and forward of the camera.

    The points are the rear's left foot, right foot, and the point 1 m above its centre, followed
    by the same three of the front.
    """

    column: list[float]
    row: list[float]
    right_m: list[float]
    down_m: list[float]
    depth_m: list[float]

    def frame(self, foot_m: float, top_m: float, margin: float) -> Frame:
        """Return the rear's frame between two heights, widened by `margin` times its width."""
        foot = 0.5 * (self.row[0] + self.row[1])
        metre, wide = foot - self.row[2], self.column[1] - self.column[0]
        return Frame(
            self.column[0] + 0.5 - margin * wide,
            self.column[1] + 0.5 + margin * wide,
            foot + 0.5 - top_m * metre,
            foot + 0.5 - foot_m * metre,
            math.inf,
        )

    def may_be_visible(self, sight: Sight) -> bool:
        """Return whether the object may reach into the picture."""
        slack = 0.2 * (max(self.column) - min(self.column))
        return max(self.column) > -slack and min(self.column) < sight.lens.width + slack

    def shows(self, side: int) -> bool:
        """Return whether the left (0) or right (1) side faces the camera."""
        if self.depth_m[3 + side] < _NEAREST_M:
            return False
        ahead = self.depth_m[3 + side] - self.depth_m[side]
        aside = self.right_m[3 + side] - self.right_m[side]
        turned = ahead * self.right_m[side] - aside * self.depth_m[side]
        return turned < 0.0 if side else turned > 0.0

    def side(self, side: int, height_m: float, sight: Sight) -> Side:
        """Return the visible part of a side, from the rear to the front."""
        rear, front = side, 3 + side
        part = 0.0
        if self.depth_m[rear] < _NEAREST_M:
            part = (_NEAREST_M - self.depth_m[rear]) / (self.depth_m[front] - self.depth_m[rear])
        lens, ends = sight.lens, []
        for share, first in ((part, 0), (1.0, 3)):
            right, down, depth = (
                one[rear] + (one[front] - one[rear]) * share
                for one in (self.right_m, self.down_m, self.depth_m)
            )
            scale = lens.focal_px / max(depth, _NEAREST_M)
            # One metre up, measured at the centre of this end.
            up = self.down_m[first + 2] - 0.5 * (self.down_m[first] + self.down_m[first + 1])
            foot = lens.cy_px + scale * down + 0.5
            top, bottom = foot + scale * up * height_m, foot - scale * up * height_m * MARGIN
            ends.append((lens.cx_px + scale * right + 0.5, top, bottom, depth))
        columns, tops, bottoms, depths = zip(*ends, strict=True)
        first_part, last_part = ((at + MARGIN) / (1.0 + 2.0 * MARGIN) for at in (part, 1.0))
        return Side(columns, tops, bottoms, depths, (first_part, last_part))


class Things:
    """Renders upright objects into one camera's pictures, far ones first."""

    def __init__(self, world: World, lighting: Lighting) -> None:
        self._road: Road = world.road
        self._lanes = world.lanes
        self._scenery = world.scenery
        self._lighting = lighting
        self._cars = CarCards(lighting)
        rng = np.random.default_rng((world.scenery.texture, 7))
        self._drawn: list[list[float]] = rng.random((_TABLE, 4)).tolist()
        self._trees = [_tree(rng, lighting) for _ in range(_TREE_KINDS if self._has_trees else 0)]

    @property
    def _has_trees(self) -> bool:
        return self._scenery.trees > 0.0

    def paint(
        self,
        picture: Picture,
        sight: Sight,
        survey: Survey,
        s_m: float,
        vehicles: Sequence[Vehicle],
    ) -> None:
        """Draw all visible objects over sky and ground."""
        standing = [
            thing
            for thing in (
                *self._posts(s_m),
                *self._lamps(s_m),
                *self._signs(s_m),
                *self._plants(s_m),
            )
            if thing.s_m < self._road.end_m
        ]
        order: list[tuple[float, _Upright | Vehicle]] = [(one.s_m, one) for one in standing]
        order += [
            (one.s_m, one) for one in vehicles if s_m - one.length_m < one.s_m < s_m + _CARS_TO_M
        ]
        order.sort(key=lambda pair: -pair[0])
        if not order:
            return
        right, down, depth = self._corners([one for _, one in order], sight)
        scale = sight.lens.focal_px / np.maximum(depth, _NEAREST_M)
        columns, rows = sight.lens.cx_px + scale * right, sight.lens.cy_px + scale * down
        places = np.stack([columns, rows, right, down, depth], axis=1)
        for place, (s, one) in zip(places.tolist(), order, strict=True):
            corners = _Corners(*place)
            if max(corners.depth_m[3:]) < _NEAREST_M or not corners.may_be_visible(sight):
                continue
            cut = survey.row_at(max(s - s_m, 1.0)) + 1.5
            if isinstance(one, Vehicle):
                self._paint_car(picture, one, corners, cut, sight)
            else:
                self._paint_upright(picture, one, corners, cut)

    def _corners(
        self, things: Sequence[_Upright | Vehicle], sight: Sight
    ) -> tuple[Floats, Floats, Floats]:
        """Return six points of each object right, down and forward of the camera, (things, 6)."""
        s, offsets = np.empty((len(things), 6)), np.empty((len(things), 6))
        for index, one in enumerate(things):
            s[index] = one.s_m
            offsets[index] = one.offset_m
            half = 0.5 * one.width_m if isinstance(one, Vehicle) else one.half_m
            if isinstance(one, Vehicle):
                s[index, 3:] += one.length_m
            offsets[index, ::3] -= half
            offsets[index, 1::3] += half
        x, y, z = self._road.places(s, offsets)
        z[:, 2::3] -= 1.0
        return sight.reach(x, y, z)

    def _lit(self, ahead_m: float, aside_m: float) -> Lit:
        lighting = self._lighting
        gain = lighting.lit(ahead_m, aside_m) if lighting.beam else lighting.ambient
        return Lit(gain, float(lighting.seen(1.0 / max(ahead_m, 1.0))))

    def _paint_upright(
        self, picture: Picture, thing: _Upright, corners: _Corners, cut: float
    ) -> None:
        if min(corners.depth_m) < _NEAREST_M:
            return
        frame = corners.frame(thing.foot_m, thing.top_m, 0.0)
        lit = self._lit(corners.depth_m[0], corners.right_m[0])
        if isinstance(thing.look, Card):
            stamp(picture, thing.look, frame._replace(cut=cut), lit, self._lighting)
        else:
            stamp_box(picture, thing.look, frame._replace(cut=cut), lit, self._lighting)

    def _paint_car(
        self, picture: Picture, car: Vehicle, corners: _Corners, cut: float, sight: Sight
    ) -> None:
        height = car.height_m
        lit = self._lit(corners.depth_m[0], corners.right_m[0])
        for side in (0, 1):
            if corners.shows(side):
                card = self._cars.side(car.paint, height)
                seen = corners.side(side, height, sight)
                stamp_side(picture, card, seen, cut, lit, self._lighting)
        if min(corners.depth_m) < _NEAREST_M:
            return
        is_braking = car.acceleration_mps2 < _BRAKE_MPS2
        card = self._cars.rear(car.paint, height, is_braking=is_braking)
        frame = corners.frame(-MARGIN * height, height, MARGIN)._replace(cut=cut)
        stamp(picture, card, frame, lit, self._lighting)

    def _posts(self, s_m: float) -> Iterator[_Upright]:
        spacing = self._scenery.post_m
        if not spacing:
            return
        for number in _numbers(s_m, _POSTS_TO_M, spacing):
            for side in (self._lanes.left_edge_m - 0.7, self._lanes.right_edge_m + 0.7):
                yield _Upright(number * spacing, side, 0.06, 0.0, 1.0, _POST)

    def _lamps(self, s_m: float) -> Iterator[_Upright]:
        spacing = self._scenery.lamps_m
        if not spacing:
            return
        at = self._lanes.right_edge_m + 1.6
        glow = max(0.0, 1.0 - 2.0 * self._lighting.ambient) * 170.0
        for number in _numbers(s_m, _LAMPS_TO_M, spacing):
            s = number * spacing
            yield _Upright(s, at, 0.08, 0.0, 8.0, _POLE)
            yield _Upright(s, at - 0.7, 0.8, 7.9, 8.1, (70.0 + glow / self._dark, 0.0, 0.0))

    @property
    def _dark(self) -> float:
        return max(self._lighting.ambient, 0.02)

    def _signs(self, s_m: float) -> Iterator[_Upright]:
        if self._scenery.signs <= 0.0:
            return
        spacing = 1000.0 / self._scenery.signs
        for number in _numbers(s_m, _SIGNS_TO_M, spacing):
            drawn = self._drawn[number % _TABLE]
            colour, wide, high = _BOARDS[int(drawn[0] * len(_BOARDS))]
            s = (number + 0.8 * drawn[1]) * spacing
            at = self._lanes.right_edge_m + 1.2 + 0.5 * wide + 2.0 * drawn[2]
            yield _Upright(s, at, 0.04, 0.0, _BOARD_FOOT_M, _POLE)
            yield _Upright(s, at, 0.5 * wide, _BOARD_FOOT_M, _BOARD_FOOT_M + high, colour)

    def _plants(self, s_m: float) -> Iterator[_Upright]:
        if not self._trees:
            return
        spacing = 100.0 / self._scenery.trees
        for number in _numbers(s_m, _TREES_TO_M, spacing):
            for side in (0, 1):
                drawn = self._drawn[(2 * number + side) % _TABLE]
                far = 5.0 + 24.0 * drawn[0]
                edges = (self._lanes.right_edge_m + far, self._lanes.left_edge_m - far)
                high = 3.0 + 8.0 * drawn[1]
                card = self._trees[int(drawn[2] * _TREE_KINDS)]
                s = (number + drawn[3]) * spacing
                yield _Upright(s, edges[side], 0.42 * high, 0.0, high, card)


def _numbers(s_m: float, reach_m: float, spacing_m: float) -> range:
    """Return the numbers of the equally spaced objects within reach ahead."""
    return range(math.floor(s_m / spacing_m), math.ceil((s_m + reach_m) / spacing_m))


def _tree(rng: np.random.Generator, lighting: Lighting) -> Card:
    """Return a random tree, a crown of many round tufts above a trunk."""
    at = (np.arange(_TREE_PX) + 0.5) / _TREE_PX
    x, y = at[None, :], at[:, None]
    planes = np.zeros((PLANES - 1, _TREE_PX, _TREE_PX), np.float32)
    trunk = (np.abs(x - 0.5) < 0.04) & (y > 0.6)
    tone = 22.0 + 26.0 * float(rng.random())
    tint = (float(rng.random()) - 0.5) * 8.0
    is_fir = rng.random() < 0.35
    colours = [(trunk, 0.7 * tone, 0.0)]
    for tuft in range(40):
        drawn = rng.random(4).tolist()
        low = 0.08 + 0.68 * drawn[0]
        wide = 0.44 * (low + 0.05) if is_fir else 0.34 - 0.5 * (low - 0.42) * (low - 0.42)
        middle = 0.5 + (2.0 * drawn[1] - 1.0) * wide
        radius = 0.045 + 0.08 * drawn[2]
        across, down = x - middle, y - low
        inside = across * across + down * down < radius * radius
        # Tufts are lit from above, with dark gaps in between.
        colours.append((inside, tone * (1.35 - 0.7 * low + 0.5 * (drawn[3] - 0.5)), float(tuft)))
    for inside, bright, number in colours:
        planes[0][inside] = 1.0
        planes[1][inside] = bright
        planes[2][inside] = (-8.0 if number else -3.0) * lighting.chroma
        planes[3][inside] = (tint - 4.0 if number else 3.0) * lighting.chroma
    return Card(planes)
