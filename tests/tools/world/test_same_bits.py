"""Worlds, what is true in them and their pictures have kept bits, with newer instructions or not.

Their digests stand in tests/golden, since recorded drives and what a training saw are known by a
seed alone: a change that draws other worlds should say so.
"""

import hashlib
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from tests.tools.world.roads import body_on
from tools.simulator.world.expert import Expert
from tools.simulator.world.painting.painter import Painter
from tools.simulator.world.traffic import Traffic
from tools.simulator.world.truth import truth_of
from tools.simulator.world.view import MED_LENS, WIDE_LENS, Mount
from tools.simulator.world.world import random_world


def _digest(values: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return digest.hexdigest()[:8]


def digests_of_worlds() -> str:
    """Return a line of each of five seeds: parts of its world and their digests."""
    lines = []
    for seed in range(5):
        world = random_world(seed, 600.0)
        body = body_on(world, 100.0 + 7.3 * seed, world.lanes.centre_m(0) + 0.3, 15.0, 0.03)
        traffic = Traffic(world, seed, body, density=0.7)
        for _ in range(20):
            traffic.step(0.05, body)
        plan = Expert(world, 0, 20.0).plan(body, traffic.vehicles)
        truth = truth_of(world, body, traffic.vehicles, plan)
        road = world.road
        parts: dict[str, Iterable[object]] = {
            "lanes": [world.lanes],
            "scenery": [world.scenery],
            "road": [road.x_m, road.z_m, road.bank_rad, *road.frames(road.s_m)],
            "body": [body],
            "traffic": traffic.vehicles,
            "plan": [plan.position_m, plan.rate_radps],
            "truth": [truth.lane_lines, truth.lead, truth.meta],
        }
        shown = (f"{name} {_digest(values)}" for name, values in parts.items())
        lines.append(f"{seed}  {'  '.join(shown)}\n")
    return "".join(lines)


def digests_of_pictures() -> str:
    """Return a line of each of 24 seeds: the lens, and the digests of Y, U and V."""
    lines = []
    for seed in range(24):
        world = random_world(seed, 400.0)
        body = body_on(world, 50.0 + 7.3 * seed, world.lanes.centre_m(0) + 0.3, 15.0, 0.03)
        vehicles = Traffic(world, seed, body, density=0.7).vehicles
        lens = seed % 2
        mount = Mount((MED_LENS, WIDE_LENS)[lens], (0.01, 0.02, -0.02), 1.3)
        planes = Painter(world, mount).paint(body, vehicles, seed)
        shown = " ".join(_digest([plane]) for plane in planes)
        lines.append(f"{seed:2}  {('med', 'wide')[lens]:4}  {shown}\n")
    return "".join(lines)


@pytest.mark.slow
def test_bits_are_the_kept_ones_with_fewer_instructions_too(
    golden: Callable[[str, str], None],
) -> None:
    # Not public and without types, but the only list of what numpy can do without.
    umath = importlib.import_module("numpy._core._multiarray_umath")
    code = f"from {__name__} import *; print(digests_of_worlds() + digests_of_pictures(), end='')"
    # numpy warns of what the processor does not have anyway.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(umath.__cpu_dispatch__)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = digests_of_worlds() + digests_of_pictures()
    golden("worlds", found)
    assert done.stdout == found
