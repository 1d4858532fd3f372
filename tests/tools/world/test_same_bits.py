"""A world, what is true in it and its pictures have the same bits without newer instructions."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

CODE = """
import hashlib
from tests.tools.world.roads import body_on
from tools.world.expert import Expert
from tools.world.painter import Painter
from tools.world.traffic import Traffic
from tools.world.truth import truth_of
from tools.world.view import MED_LENS, WIDE_LENS, Mount
from tools.world.world import random_world

digest = hashlib.sha256()
for seed in range(5):
    world = random_world(seed, 600.0)
    body = body_on(world, 100.0 + 7.3 * seed, world.lanes.centre_m(0) + 0.3, 15.0, 0.03)
    traffic = Traffic(world, seed, body, density=0.7)
    for _ in range(20):
        traffic.step(0.05, body)
    plan = Expert(world, 0, 20.0).plan(body, traffic.vehicles)
    truth = truth_of(world, body, traffic.vehicles, plan)
    digest.update(repr((world.lanes, world.scenery, body, traffic.vehicles)).encode())
    road = world.road
    for table in (road.x_m, road.z_m, road.bank_rad, *road.frames(road.s_m)):
        digest.update(table.tobytes())
    for table in (plan.position_m, plan.rate_radps, truth.lane_lines, truth.lead, truth.meta):
        digest.update(table.tobytes())
print(digest.hexdigest())
digest = hashlib.sha256()
for seed in range(24):
    world = random_world(seed, 400.0)
    body = body_on(world, 50.0 + 7.3 * seed, world.lanes.centre_m(0) + 0.3, 15.0, 0.03)
    vehicles = Traffic(world, seed, body, density=0.7).vehicles
    lens = (MED_LENS, WIDE_LENS)[seed % 2]
    for plane in Painter(world, Mount(lens, (0.01, 0.02, -0.02), 1.3)).paint(body, vehicles, seed):
        digest.update(plane.tobytes())
print(digest.hexdigest())
"""


def printed(disabled: str) -> str:
    """Return what the code prints without instructions that numpy can do without."""
    # numpy warns of what the processor does not have anyway.
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "NPY_DISABLE_CPU_FEATURES": disabled},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_fewer_instructions_give_the_same_bits() -> None:
    # Not public and without types, but the only list of what can be disabled.
    umath = importlib.import_module("numpy._core._multiarray_umath")
    assert printed("") == printed(" ".join(umath.__cpu_dispatch__))
