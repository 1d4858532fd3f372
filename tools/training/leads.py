"""Draws the car ahead in a drive that is learnt from: it slows or stops, again and again."""

from __future__ import annotations

import numpy as np

from tools.world.traffic import ScriptedLead

# Shares of drives without it, and of brakings that end in a stop.
_NONE_SHARE, _STOP_SHARE = 0.3, 0.6
# How far ahead it begins: some are come upon, from beyond where leads are told of.
_GAP_M = (8.0, 150.0)
# Its speeds as shares of the road's limit: driving, and slowed down.
_DRIVING, _SLOWED = (0.3, 1.0), (0.2, 0.8)
# It drives steadily for so long, brakes so hard, m/s^2, waits half of the times a little, else long
# enough for one that creeps to come near, and pulls away. Hard braking is rare on roads: each drive
# has as many cases of it as fit (ADR 0098).
_STEADY_S, _BRAKES_MPS2 = (1.0, 10.0), (0.7, 6.0)
_SOON_S, _LONG_S, _PULLS_AWAY_S = (0.5, 3.0), (3.0, 25.0), (4.0, 10.0)
_SHORTEST_S = 0.5


def random_lead(
    limit_mps: float, rng: np.random.Generator, duration_s: float
) -> ScriptedLead | None:
    """Return a car ahead for most of the drives, None for the others.

    Args:
        limit_mps: of the road.
        rng: draws.
        duration_s: of the drive: so long it begins to brake again.
    """
    if rng.random() < _NONE_SHARE:
        return None
    gap, driving = rng.uniform(*_GAP_M), limit_mps * rng.uniform(*_DRIVING)
    time_s, speeds = 0.0, [(0.0, driving)]
    while time_s < duration_s:
        slow = 0.0 if rng.random() < _STOP_SHARE else limit_mps * rng.uniform(*_SLOWED)
        begin = time_s + rng.uniform(*_STEADY_S)
        end = begin + max((driving - slow) / rng.uniform(*_BRAKES_MPS2), _SHORTEST_S)
        again = end + rng.uniform(*(_SOON_S if rng.random() < 0.5 else _LONG_S))
        time_s = again + rng.uniform(*_PULLS_AWAY_S)
        speeds += [(begin, driving), (end, slow), (again, slow), (time_s, driving)]
    return ScriptedLead(gap, tuple(speeds))
