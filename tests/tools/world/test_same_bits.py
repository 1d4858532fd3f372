"""A world and what is true in it have the same bits on processors with fewer instructions."""

from __future__ import annotations

from tests.tools.world.fewer_instructions import printed

_CODE = """
import hashlib
from tests.tools.world.roads import body_on
from tools.world.expert import Expert
from tools.world.traffic import Traffic
from tools.world.truth import truth_of
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
"""


def test_fewer_instructions_give_the_same_bits() -> None:
    assert printed(_CODE, fewer=False) == printed(_CODE, fewer=True)
