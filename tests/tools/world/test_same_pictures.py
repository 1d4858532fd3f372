"""Pictures have the same bits on processors with fewer instructions."""

from __future__ import annotations

from tests.tools.world.fewer_instructions import printed

_CODE = """
import hashlib
from tests.tools.world.roads import body_on
from tools.world.painter import Painter
from tools.world.traffic import Traffic
from tools.world.view import MED_LENS, WIDE_LENS, Mount
from tools.world.world import random_world

digest = hashlib.sha256()
for seed in range(24):
    world = random_world(seed, 400.0)
    body = body_on(world, 50.0 + 7.3 * seed, world.lanes.centre_m(0) + 0.3, 15.0, 0.03)
    vehicles = Traffic(world, seed, body, density=0.7).vehicles
    lens = (MED_LENS, WIDE_LENS)[seed % 2]
    picture = Painter(world, Mount(lens, (0.01, 0.02, -0.02), 1.3)).paint(body, vehicles, seed)
    for plane in picture:
        digest.update(plane.tobytes())
print(digest.hexdigest())
"""


def test_fewer_instructions_give_the_same_pictures() -> None:
    assert printed(_CODE, fewer=False) == printed(_CODE, fewer=True)
