"""What the world looks like beside its geometry: light, weather, surfaces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Scenery:
    """The look of a world.

    Attributes:
        light: 1 at noon, 0 at night.
        haze: share of contrast that is lost at 200 m.
        rain: 0..1.
        texture: seed of surfaces and colours.
    """

    light: float = 1.0
    haze: float = 0.2
    rain: float = 0.0
    texture: int = 0


PLAIN = Scenery()


def random_scenery(rng: np.random.Generator) -> Scenery:
    """Return a random look."""
    light, haze, rain = rng.random(3).tolist()
    return Scenery(light, haze, max(2.0 * rain - 1.0, 0.0), int(rng.integers(1 << 30)))
