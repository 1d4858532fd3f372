"""Paints the ground by differences: a road over hills, with all that is painted on it.

Every border of a strip adds, in each row of the picture, the step of brightness to the pixel it
crosses, divided between that pixel and the next; one running sum along the rows turns the steps
into the picture. So borders are exact to a fraction of a pixel whatever they overlap.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tools.world.along import Grain
from tools.world.curves import Floats
from tools.world.lanes import Lanes
from tools.world.layers import Band, Layer, Room, sweep
from tools.world.light import BLACK, Floats32, Lighting, beam_picture
from tools.world.scenery import Scenery
from tools.world.strips import GRAIN_ROWS, shade_strips, strips_of
from tools.world.survey import Survey
from tools.world.view import View

# Small pictures are sampled twice a row.
_FINE_ROWS = 400
# What stands along the edges is lower than this share of the lens's height.
_BELOW_LENS = 0.8
# A wet road mirrors the sky where it is seen at a grazing angle: from so far on, so much of it.
_SHINE_FROM_1PM = 0.125
_SHINE = 0.5
# However many shadows fall together, so much light is left.
_DARKEST = 0.3


class Pixels(NamedTuple):
    """The picture from row `top` down: brightness, and colours less 128 at half the size.

    Valid until the ground paints the next one.
    """

    top: int
    luma: Floats32
    u: Floats32
    v: Floats32

    @property
    def planes(self) -> tuple[Floats32, Floats32, Floats32]:
        """Brightness and colours."""
        return self.luma, self.u, self.v


class Ground:
    """Paints one camera's ground.

    Args:
        view: the camera.
        lanes: of the road.
        scenery: its look.
        lighting: its light.
    """

    def __init__(self, view: View, lanes: Lanes, scenery: Scenery, lighting: Lighting) -> None:
        self._lens = view.lens
        self._lighting = lighting
        self._base = (scenery.verge[0] - BLACK, scenery.verge[1] - 128.0, scenery.verge[2] - 128.0)
        self._shine = max(0.0, lighting.sky_low[0] - scenery.asphalt[0]) * _SHINE * lighting.wet
        self._grain = Grain(np.random.default_rng((scenery.texture, 3)), GRAIN_ROWS)
        strips = strips_of(lanes, scenery, _BELOW_LENS * view.height_m)
        shades = shade_strips(lanes, scenery, lighting.sun)
        every = (*strips, *shades)
        # Of the borders, left and right of each strip.
        self.offset_m: Floats = np.array([at for one in every for at in (one.left_m, one.right_m)])
        self.up_m: Floats = np.array(
            [at for one in every for at in (one.left_up_m, one.right_up_m)]
        )
        self._layer = Layer(strips, 0)
        self._shades = Layer(shades, 2 * len(strips)) if shades else None
        self._beam = beam_picture(view) if lighting.beam else None
        size = (self._lens.height, self._lens.width)
        self._room = Room(*size)
        self._shade_room = Room(*size) if shades else self._room
        self._u_room, self._v_room = (Room(size[0] // 2, size[1] // 2) for _ in range(2))
        self._samples = 2 if self._lens.height < _FINE_ROWS else 1

    def paint(self, survey: Survey, s_m: float) -> Pixels:
        """Return the ground from the highest row of the skyline down.

        Args:
            survey: the road ahead, with the borders of this ground.
            s_m: arc length of the camera.
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
            luma = sweep(edges, amounts * bright, self._base[0] * bright + haze, self._room)
            self._darken(luma, survey, s_m, band)
        else:
            luma = sweep(edges, amounts * seen, self._base[0] * seen, self._room)
            luma *= lighting.ambient + lighting.beam * self._beam[-band.count :]
            luma += haze[:, None].astype(np.float32)
        u, v = self._colours(edges, share * seen, seen)
        return Pixels(lens.height - band.count, luma, u, v)

    def _darken(self, luma: Floats32, survey: Survey, s_m: float, band: Band) -> None:
        """Let shadows fall on the ground."""
        if self._shades is None:
            return
        edges = self._shades.edges(survey, band, self._lens.width)
        amounts, _ = self._shades.amounts(survey, s_m, band, self._grain)
        light = sweep(edges, amounts, np.ones(band.count), self._shade_room)
        np.clip(light, np.float32(_DARKEST), np.float32(1.0), out=light)
        luma *= light

    def _colours(self, edges: Floats, share: Floats, seen: Floats) -> tuple[Floats32, Floats32]:
        """Return U and V of the ground, less 128, at half the size."""
        layer, lighting = self._layer, self._lighting
        tinted = share[layer.tinted]
        amounts = 0.5 * lighting.chroma * (tinted[:, ::2] + tinted[:, 1::2])
        seen = 0.5 * (seen[::2] + seen[1::2])
        # Both samples in the middle of two rows.
        borders = edges[layer.tinted_borders].reshape(-1, amounts.shape[1], 2 * self._samples)
        middle = self._samples
        half = 0.25 * (borders[:, :, middle - 1] + borders[:, :, middle])
        planes = []
        rooms = (self._u_room, self._v_room)
        for plane, tone, room in zip((1, 2), (layer.u, layer.v), rooms, strict=True):
            haze = (lighting.haze[plane] - 128.0) * (1.0 - seen)
            base = self._base[plane] * lighting.chroma * seen + haze
            planes.append(sweep(half, tone * amounts, base, room))
        return planes[0], planes[1]
