"""Paints what one camera sees of a world, as planar 4:2:0 pictures, a few milliseconds each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tools.world.body import Body
from tools.world.ground import Ground
from tools.world.light import lighting_of
from tools.world.sensor import Sensor
from tools.world.sky import Picture, Sky
from tools.world.survey import survey
from tools.world.things import Things
from tools.world.traffic import Vehicle
from tools.world.view import Mount, View
from tools.world.woods import Woods
from tools.world.world import World


class Painter:
    """Paints one camera's pictures of one world.

    Equal arguments give equal pictures, bit by bit, in any order.

    Args:
        world: what there is.
        mount: the camera; even width and height.
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
        """Return what the camera sees.

        Args:
            body: the car it is mounted in.
            vehicles: the others.
            number: of the frame: seeds its noise and rain.
        """
        sight = self._view.sight(body)
        seen = survey(sight, self._world.road, body.s_m, self._offset_m, self._up_m)
        ground = self._ground.paint(seen, body.s_m)
        picture = self._sky.paint(sight, body.heading_rad, ground, seen.skyline)
        self._woods.paint(picture, seen, body.s_m)
        self._things.paint(picture, sight, seen, body.s_m, vehicles)
        return self._sensor.develop(picture, sight, number)
