"""The appearance of a world: light, weather, surfaces, and objects along the road.

Colours are (Y, U, V) in BT.601 limited range, as a camera shows them at noon.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Colour = tuple[float, float, float]

# Structures along an edge of the road: none, a guard rail, a low wall, or a kerb.
NOTHING, RAIL, WALL, KERB = range(4)

# Ground next to the road: meadow, dark meadow, dry grass, earth, gravel, sand, snow.
_VERGES: tuple[Colour, ...] = (
    (104.0, 108.0, 122.0),
    (76.0, 114.0, 121.0),
    (160.0, 111.0, 140.0),
    (112.0, 116.0, 137.0),
    (124.0, 124.0, 131.0),
    (172.0, 116.0, 136.0),
    (206.0, 130.0, 127.0),
)
_VERGE_SHARES = (0.28, 0.5, 0.72, 0.84, 0.92, 0.97)
_MARKING_YELLOW: Colour = (168.0, 78.0, 148.0)


@dataclass(frozen=True, slots=True)
class Scenery:
    """The parameters of a world's appearance. Equal ones look the same.

    Attributes:
        texture: seed of all random details: grain, patches, trees, hills, clouds.
        light: brightness, 1 at noon, 0 at night; headlights are on below 0.4.
        sun_azimuth_rad: direction of the sun in the world, positive to the right of x.
        glare: strength of a low sun in the lens, 0 for none.
        cloud: cloud cover, 0..1.
        haze_m: distance at which half of the contrast is lost.
        rain: 0..1; adds streaks and shine on the road, and lowers contrast.
        verge, asphalt, yellow, woods: colours of the ground, asphalt, yellow paint and woods.
        shoulder: luma difference between the asphalt beyond the outer lines and the lanes.
        paint: luma of new white paint.
        has_studs: whether there are bright studs between the dashes.
        asphalt_grain, verge_grain: amplitude of the texture, in luma.
        tracks: luma added in the wheel tracks and subtracted between them, by oil.
        patches: share of the road with mended asphalt.
        cracks: cracks across the road per 100 m.
        gravel_m: width of a strip of gravel along the asphalt.
        rail: structures on the right and left edge: ``NOTHING``, ``RAIL``, ``WALL``, ``KERB``.
        post_m: distance between roadside posts; 0 for none.
        trees: trees per 100 m of road and side.
        signs: signs per km.
        lamps_m: distance between street lamps; 0 for none.
        woods_m: height of the woods or wall along the right and the left side; 0 for none.
        woods_beyond_m: their distance from the asphalt.
        woods_rough: roughness of their top, 0 for a wall, 1 for the edge of a wood.
        treeline_rad, hills_rad: mean height of the trees and the hills at the horizon.
        shadows: share of the road in the shade of trees, 0..1; only in sunshine.
        exposure: gain of the camera's exposure, 1 is neutral.
        cast: error of the white balance, added to U and V.
        blur: strength of the blur, from 0 for none to 3; roughly pixels.
        noise: standard deviation of the sensor's noise, in luma.
    """

    texture: int = 0
    light: float = 1.0
    sun_azimuth_rad: float = 0.0
    glare: float = 0.0
    cloud: float = 0.0
    haze_m: float = 400.0
    rain: float = 0.0
    verge: Colour = _VERGES[0]
    asphalt: Colour = (92.0, 131.0, 127.0)
    shoulder: float = 4.0
    paint: float = 216.0
    yellow: Colour = _MARKING_YELLOW
    has_studs: bool = False
    asphalt_grain: float = 3.0
    verge_grain: float = 6.0
    tracks: float = 3.0
    patches: float = 0.0
    cracks: float = 0.0
    gravel_m: float = 0.0
    rail: tuple[int, int] = (NOTHING, NOTHING)
    post_m: float = 50.0
    trees: float = 0.0
    signs: float = 0.0
    lamps_m: float = 0.0
    woods_m: tuple[float, float] = (0.0, 0.0)
    woods_beyond_m: float = 8.0
    woods_rough: float = 1.0
    woods: Colour = (56.0, 122.0, 125.0)
    treeline_rad: float = 0.01
    hills_rad: float = 0.025
    shadows: float = 0.0
    exposure: float = 1.0
    cast: tuple[int, int] = (0, 0)
    blur: int = 0
    noise: float = 0.0


PLAIN = Scenery()


def random_scenery(rng: np.random.Generator) -> Scenery:
    """Return a random appearance."""
    draw = _Draws(rng)
    light = _random_light(draw)
    rain = draw.between(0.15, 1.0) if draw.chance(0.15) else 0.0
    cloud = 1.0 if rain else draw.squared() if draw.chance(0.6) else 0.0
    is_sunny = light > 0.6 and cloud < 0.5
    haze_m = draw.between(60.0, 250.0) if draw.chance(0.15 + 0.4 * rain) else 0.0
    kind = draw.one()
    verge = _varied(draw, _VERGES[sum(kind >= share for share in _VERGE_SHARES)], 18.0, 4.0)
    base = draw.between(62.0, 128.0)
    asphalt = (base, draw.between(127.0, 133.0), draw.between(125.5, 129.0))
    trees = 4.0 * draw.squared() + 0.3 if draw.chance(0.6) else 0.0
    paint = max(draw.between(170.0, 228.0), base + 60.0)
    yellow = _varied(draw, _MARKING_YELLOW, 14.0, 10.0)
    is_wall = draw.chance(0.25)
    wall, wood = (draw.between(80.0, 170.0), 126.0, 131.0), (draw.between(36.0, 76.0), 121.0, 125.0)
    high = (
        (draw.between(1.8, 4.5) if is_wall else draw.between(2.0, 14.0))
        if draw.chance(0.5)
        else 0.0
    )
    sides = (draw.chance(0.7), draw.chance(0.7))
    return Scenery(
        texture=int(rng.integers(1 << 30)),
        light=light,
        sun_azimuth_rad=draw.between(-3.1, 3.1),
        glare=draw.between(0.3, 1.0) if is_sunny and draw.chance(0.3) else 0.0,
        cloud=cloud,
        haze_m=haze_m if haze_m else draw.between(250.0, 1500.0),
        rain=rain,
        verge=verge,
        asphalt=asphalt,
        shoulder=draw.between(-10.0, 14.0),
        paint=paint,
        yellow=(max(yellow[0], base + 40.0), *yellow[1:]),
        has_studs=draw.chance(0.25),
        asphalt_grain=8.0 * draw.squared() + 3.0,
        verge_grain=draw.between(3.0, 16.0),
        tracks=draw.between(-7.0, 8.0),
        patches=0.25 * draw.one() if draw.chance(0.35) else 0.0,
        cracks=draw.between(1.0, 25.0) if draw.chance(0.35) else 0.0,
        gravel_m=draw.between(0.2, 1.8) if draw.chance(0.5) else 0.0,
        rail=(_random_rail(draw), _random_rail(draw)),
        post_m=(25.0, 33.0, 50.0)[int(3.0 * draw.one())] if draw.chance(0.5) else 0.0,
        trees=trees,
        signs=draw.between(0.5, 6.0) if draw.chance(0.6) else 0.0,
        lamps_m=draw.between(30.0, 60.0) if draw.chance(0.25) else 0.0,
        woods_m=(high * sides[0], high * sides[1] * draw.between(0.7, 1.0)),
        woods_beyond_m=draw.between(1.5, 6.0) if is_wall else draw.between(3.0, 22.0),
        woods_rough=0.04 if is_wall else draw.between(0.3, 1.0),
        woods=_varied(draw, wall if is_wall else wood, 0.0, 4.0),
        treeline_rad=0.035 * draw.squared() + 0.002,
        hills_rad=0.04 * draw.squared(),
        shadows=draw.between(0.05, 0.6) if is_sunny and draw.chance(0.45) else 0.0,
        exposure=draw.between(0.85, 1.18),
        cast=(int(rng.integers(-3, 4)), int(rng.integers(-3, 4))),
        blur=(0, 0, 0, 1, 1, 2, 3)[int(rng.integers(7))],
        noise=0.6 + 3.0 * draw.squared() + 2.5 * max(0.0, 0.5 - light),
    )


class _Draws:
    """Random draws of several distributions from one generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def one(self) -> float:
        """Return a number in 0..1."""
        return float(self._rng.random())

    def squared(self) -> float:
        """Return a number in 0..1, more often a small one."""
        drawn = self.one()
        return drawn * drawn

    def between(self, low: float, high: float) -> float:
        """Return a number between two limits."""
        return low + (high - low) * self.one()

    def chance(self, share: float) -> bool:
        """Return True with the given probability."""
        return self.one() < share


def _random_light(draw: _Draws) -> float:
    """Return the light: two thirds of the worlds are in daylight, one in seven is dark."""
    kind = draw.one()
    if kind < 0.66:
        return draw.between(0.75, 1.0)
    return draw.between(0.35, 0.75) if kind < 0.86 else draw.between(0.0, 0.35)


def _random_rail(draw: _Draws) -> int:
    """Return the structure along an edge; half of the edges have none."""
    kind = draw.one()
    if kind < 0.74:
        return NOTHING if kind < 0.5 else RAIL
    return WALL if kind < 0.86 else KERB


def _varied(draw: _Draws, colour: Colour, luma: float, tone: float) -> Colour:
    return (
        colour[0] + draw.between(-luma, luma),
        colour[1] + draw.between(-tone, tone),
        colour[2] + draw.between(-tone, tone),
    )
