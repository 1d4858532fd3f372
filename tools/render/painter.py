"""Paints the pictures of a rendered drive: its flat road of three lanes, in the simulated world."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tools.render.world import (
    EDGE_OFFSETS_M,
    LANE_WIDTH_M,
    LINE_OFFSETS_M,
    CarState,
    World,
)
from tools.world.body import Body
from tools.world.painting.painter import Painter
from tools.world.painting.sky import Picture
from tools.world.road import Road
from tools.world.scenery import PLAIN, Scenery
from tools.world.traffic import Vehicle
from tools.world.view import Mount
from tools.world.world import Lanes, Marking, MarkingKind
from tools.world.world import World as PaintedWorld

# By day, without noise: noise mostly busies the encoder.
DRIVE_SCENERY: Scenery = replace(
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
_SPEED_LIMIT_MPS = 30.0
# The car ahead: a blue one.
_LEAD = Vehicle(0.0, 0.0, 0.0, 0.0, width_m=1.82, height_m=1.46, length_m=4.5, paint=9)


class DrivePainter:
    """Paints one camera's pictures of a drive.

    Args:
        world: what happens.
        mount: the camera; even width and height.
        seed: of texture, trees and hills.
    """

    def __init__(self, world: World, mount: Mount, seed: int) -> None:
        self._world = world
        self._painter = Painter(painted_world(world, seed), mount)

    def paint(self, tick: int) -> Picture:
        """Return what the camera sees at a tick of the world."""
        state = self._world.state(tick)
        lead = replace(
            _LEAD,
            s_m=state.lead_s_m,
            offset_m=self._world.offset_at(state.lead_s_m),
            speed_mps=state.lead_speed_mps,
        )
        return self._painter.paint(body_of(state), (lead,), tick)


def painted_world(world: World, seed: int) -> PaintedWorld:
    """Return the road of a drive as a world: flat, with three lanes."""
    road = world.road
    level = np.zeros_like(road.x_m)
    kinds = (MarkingKind.SOLID, MarkingKind.DASHED, MarkingKind.DASHED, MarkingKind.SOLID)
    markings = tuple(
        Marking(offset, kind, is_yellow=index == 0)
        for index, (offset, kind) in enumerate(zip(LINE_OFFSETS_M, kinds, strict=True))
    )
    return PaintedWorld(
        seed=seed,
        road=Road(
            start_m=road.start_m,
            x_m=road.x_m,
            y_m=road.y_m,
            z_m=level,
            heading_rad=road.heading_rad,
            curvature_1pm=road.curvature_1pm,
            grade_rad=level,
            bank_rad=level,
        ),
        lanes=Lanes(LANE_WIDTH_M, len(markings) - 1, markings, *EDGE_OFFSETS_M),
        scenery=replace(DRIVE_SCENERY, texture=seed),
        speed_limit_mps=_SPEED_LIMIT_MPS,
    )


def body_of(state: CarState) -> Body:
    """Return the car of a drive on its flat road."""
    return Body(
        s_m=state.s_m,
        offset_m=state.offset_m,
        x_m=state.x_m,
        y_m=state.y_m,
        z_m=0.0,
        heading_rad=state.heading_rad,
        pitch_rad=0.0,
        roll_rad=0.0,
        speed_mps=state.speed_mps,
        acceleration_mps2=state.acceleration_mps2,
        curvature_1pm=state.curvature_1pm,
    )
