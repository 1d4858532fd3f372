"""A world, what is true in it and its pictures have the same bits without newer instructions."""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
from pathlib import Path

from tests.tools.world.roads import body_on
from tools.world.expert import Expert
from tools.world.painter import Painter
from tools.world.traffic import Traffic
from tools.world.truth import truth_of
from tools.world.view import MED_LENS, WIDE_LENS, Mount
from tools.world.world import random_world


def digest_of_worlds() -> str:
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
    return digest.hexdigest()


def digest_of_pictures() -> str:
    digest = hashlib.sha256()
    for seed in range(24):
        world = random_world(seed, 400.0)
        body = body_on(world, 50.0 + 7.3 * seed, world.lanes.centre_m(0) + 0.3, 15.0, 0.03)
        vehicles = Traffic(world, seed, body, density=0.7).vehicles
        mount = Mount((MED_LENS, WIDE_LENS)[seed % 2], (0.01, 0.02, -0.02), 1.3)
        for plane in Painter(world, mount).paint(body, vehicles, seed):
            digest.update(plane.tobytes())
    return digest.hexdigest()


def test_fewer_instructions_give_the_same_bits() -> None:
    # Not public and without types, but the only list of what numpy can do without.
    umath = importlib.import_module("numpy._core._multiarray_umath")
    names = ("digest_of_worlds", "digest_of_pictures")
    code = f"from {__name__} import *; print({', '.join(f'{name}()' for name in names)})"
    # numpy warns of what the processor does not have anyway.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(umath.__cpu_dispatch__)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [digest_of_worlds(), digest_of_pictures()]
