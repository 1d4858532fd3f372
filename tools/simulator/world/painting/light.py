"""The lighting of a world: daylight, headlights, haze, and reflections on a wet road.

Brightness is luma over black (luma - 16), as the camera shows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.simulator.world.curves import Floats
from tools.simulator.world.scenery import Colour, Scenery
from tools.simulator.world.view import View

BLACK, WHITE = 16.0, 235.0
# A scenery's light runs from 0 (night) to 1 (noon). Below this light, headlights are on.
DUSK = 0.4

Floats32 = NDArray[np.float32]

# The tuples below have three knots: night (light 0), dusk (`DUSK`) and day (1).
# Brightness relative to noon, after the camera's auto exposure.
_AMBIENT = (0.035, 0.42, 1.0)
# Top of a clear sky.
_SKY_TOP: tuple[Colour, ...] = ((20.0, 131.0, 127.0), (86.0, 143.0, 119.0), (152.0, 150.0, 108.0))
# Horizon of a clear sky.
_SKY_LOW: tuple[Colour, ...] = ((32.0, 130.0, 128.0), (146.0, 117.0, 141.0), (194.0, 138.0, 121.0))
# Top of a cloudy sky.
_GREY_TOP: tuple[Colour, ...] = ((20.0, 129.0, 128.0), (90.0, 131.0, 126.0), (188.0, 130.0, 127.0))
# Horizon of a cloudy sky.
_GREY_LOW: tuple[Colour, ...] = ((30.0, 128.0, 130.0), (112.0, 128.0, 130.0), (206.0, 128.0, 128.0))
# Distance at which the low beams' light has fallen to half.
_BEAM_REACH_M = 24.0
# Maximum brightness of the road in the low beams.
_BEAM_PEAK = 1.15
# Growth of the low beams' half width per metre ahead.
_BEAM_SPREAD = 0.22


@dataclass(frozen=True, slots=True)
class Lighting:
    """The light of a world.

    Attributes:
        ambient: factor on the brightness at noon, for everything on the ground.
        beam: brightness of the headlights, 0 by day.
        chroma: factor on U and V.
        sky_top, sky_low: colours of the sky at the top and at the horizon.
        haze: colour to which distant things fade.
        haze_m: distance at which half of the contrast is lost.
        wet: share of the sky reflected by a wet road, 0..1.
        sun: hardness of shadows, 0..1.
    """

    ambient: float
    beam: float
    chroma: float
    sky_top: Colour
    sky_low: Colour
    haze: Colour
    haze_m: float
    wet: float
    sun: float

    def seen(self, nearness_1pm: Floats | float) -> Floats:
        """Return the share of contrast that haze leaves; the argument is the inverse distance."""
        square = np.square(np.asarray(nearness_1pm) * self.haze_m)
        return np.asarray(square / (1.0 + square))

    def lit(self, ahead_m: float, aside_m: float) -> float:
        """Return the brightness factor of an upright object; `aside_m` is positive to the right."""
        return self.ambient + 0.7 * self.beam * float(beam_at(ahead_m, aside_m))


def lighting_of(scenery: Scenery) -> Lighting:
    """Return the light that a scenery defines."""
    light, gain = min(max(scenery.light, 0.0), 1.0), scenery.exposure

    def sky(clear: tuple[Colour, ...], grey: tuple[Colour, ...]) -> Colour:
        one, two = _by_light(clear, light), _by_light(grey, light)
        luma, u, v = (a + (b - a) * scenery.cloud for a, b in zip(one, two, strict=True))
        return min(BLACK + (luma - BLACK) * gain, WHITE - 6.0), u, v

    low = sky(_SKY_LOW, _GREY_LOW)
    ambient = _between(_AMBIENT, light) * (1.0 - 0.12 * scenery.cloud - 0.1 * scenery.rain)
    beam = max(0.0, 1.0 - light / DUSK)
    return Lighting(
        ambient=ambient * gain,
        beam=_BEAM_PEAK * beam * gain,
        chroma=0.25 + 0.75 * math.sqrt(light),
        sky_top=sky(_SKY_TOP, _GREY_TOP),
        sky_low=low,
        haze=(BLACK + 0.86 * (low[0] - BLACK), 0.5 * (low[1] + 128.0), 0.5 * (low[2] + 128.0)),
        haze_m=scenery.haze_m * (1.0 - 0.6 * scenery.rain),
        wet=min(1.0, 1.4 * scenery.rain),
        sun=max(0.0, 2.0 * light - 1.0) * (1.0 - scenery.cloud),
    )


def beam_at(ahead_m: Floats | float, aside_m: Floats | float) -> Floats:
    """Return the low beams' light in front of the car, 0..1; `aside_m` is positive to the right."""
    ahead = np.maximum(ahead_m, 0.5)
    far = ahead / _BEAM_REACH_M
    # The road is dark right in front of the bumper. Low beams point slightly to the right.
    begin = np.minimum(ahead * 0.16, 1.0)
    across = (aside_m - 0.04 * ahead) / (2.2 + _BEAM_SPREAD * ahead)
    square = across * across
    return np.asarray(begin / ((1.0 + far * far) * (1.0 + square * square)))


def beam_picture(view: View) -> Floats32:
    """Return the low beams' light on a level road at each pixel, (h, w), 0..1."""
    ahead, aside, down = (part.astype(np.float32) for part in view.rays())
    # Rays that fall less than 5 mm per metre are treated as reaching the horizon.
    scale = view.height_m / np.maximum(down, 0.005)
    return beam_at(ahead * scale, aside * scale).astype(np.float32)


def _between(knots: tuple[float, ...], light: float) -> float:
    """Return a value interpolated between its knots at the lights 0, ``DUSK`` and 1."""
    if light < DUSK:
        return knots[0] + (knots[1] - knots[0]) * (light / DUSK)
    return knots[1] + (knots[2] - knots[1]) * ((light - DUSK) / (1.0 - DUSK))


def _by_light(colours: tuple[Colour, ...], light: float) -> Colour:
    luma, u, v = (_between(tuple(part), light) for part in zip(*colours, strict=True))
    return luma, u, v
