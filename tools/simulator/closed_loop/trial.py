"""Defines scenarios, and makes one drive of a scenario, a *trial*, from a seed.

Trials of the same seed share their road, unless the scenario changes it; everything else is drawn
for the scenario. The roads' seeds are far from those used for training, so a model has seen none of
these roads.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from tools.simulator.world.expert import LEFT, RIGHT
from tools.simulator.world.road import straights_and_arcs
from tools.simulator.world.traffic import ScriptedLead
from tools.simulator.world.world import World, random_world


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of drive.

    Attributes:
        name, what: name and description.
        length_m: default distance after the hand-over.
        speed_mps: lowest and highest speed at the hand-over; None for the road's limit.
        off_m: offset from the lane's centre at the hand-over, to a random side.
        off_deg: heading error at the hand-over, to a random side.
        counts_from_m: distance from which offsets and departures are judged, and recoveries.
        sharp: whether the road has curves that need slowing down.
        traffic: whether there are other cars on the road.
        lead: whether a car ahead brakes to a stop.
        lane_change_every_m: distance between lane changes; 0 for none.
        lost_frames: share of frames that each camera fails to deliver.
        calibration_off_deg: yaw error of ``liveCalibration`` during `CALIBRATION_OFF_S`; the
            pitch error is half of it.
        light: 0 is night, 1 is noon; None for the road's own.
        rain: 0 is none, 1 is heavy; None for the road's own.
    """

    name: str
    what: str
    length_m: float = 1000.0
    speed_mps: tuple[float, float] | None = None
    off_m: float = 0.0
    off_deg: float = 0.0
    counts_from_m: float = 0.0
    sharp: bool = False
    traffic: bool = False
    lead: bool = False
    lane_change_every_m: float = 0.0
    lost_frames: float = 0.0
    calibration_off_deg: float = 0.0
    light: float | None = None
    rain: float | None = None


STANDARD = Scenario(
    "lane-keeping", "a random road with other cars on it", length_m=2000.0, traffic=True
)
_ALL = (
    STANDARD,
    Scenario(
        "recovery",
        "handed over 1 m and 3 degrees off the lane",
        length_m=100.0,
        speed_mps=(9.0, 15.0),
        off_m=1.0,
        off_deg=3.0,
        counts_from_m=50.0,
    ),
    Scenario(
        "stopping-lead",
        "a car ahead brakes to a stop",
        length_m=800.0,
        speed_mps=(12.0, 25.0),
        lead=True,
    ),
    Scenario("lane-change", "lane changes by blinker and a nudge", lane_change_every_m=250.0),
    Scenario("curves", "curves that need slowing down", sharp=True),
    Scenario("lost-frames", "cameras that lose one frame in 25", lost_frames=0.04),
    Scenario("calibration", "a wrong calibration that is then corrected", calibration_off_deg=1.0),
    Scenario("night", "headlights only", light=0.0),
    Scenario("rain", "heavy rain", rain=1.0),
)
SCENARIOS: Mapping[str, Scenario] = MappingProxyType({one.name: one for one in _ALL})

# Seed of the first road; training uses seeds below it.
FIRST_WORLD = 1_000_000_000
# Duration of the run-up, which fills the model's history.
RUN_UP_S = 5.0
# Arc length at which the run-up begins; the hand-over is `RUN_UP_S` later.
RUN_UP_FROM_M = 10.0
# Length of the road beyond the end of the drive; the road's sight distance is added.
ROAD_BEYOND_M = 50.0
# A road with sharp curves is built for this share of its speed limit.
_SHARP = 0.65
CALIBRATION_OFF_S = (4.0, 14.0)
# Largest lateral acceleration of the run-up, which does not slow down for curves.
_RUN_UP_LATERAL_MPS2 = 2.0
# A recovery needs up to 2 m/s2 itself, of the 3 m/s2 that the car allows.
RECOVERY_LATERAL_MPS2 = 1.2
_LANE_CHANGE_MIN_MPS = 12.0
_IN_TRAFFIC = 0.85
_RADIANS = 0.017453292519943295

Angles = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class RequestedChange:
    """A lane change to a `side`, requested at arc length `s_m`."""

    s_m: float
    side: int


@dataclass(frozen=True, slots=True)
class Trial:
    """The complete description of one drive; equal trials give equal drives.

    Attributes:
        scenario, seed: kind of drive, and the user's seed.
        world: road and scenery.
        lane: lane of the hand-over.
        hand_over_m: arc length of the hand-over.
        end_m: arc length of the end.
        speed_mps: speed at the hand-over.
        off_m: offset from the lane's centre at the hand-over, positive to the right.
        off_rad: heading error at the hand-over, positive to the right.
        rpy_rad: mounting of the cameras, device from calib.
        wrong_rpy_rad: wrong angles in ``liveCalibration``, see `reported_rpy_rad`.
        height_m: height of the cameras.
        lead: a braking lead car, timed from the beginning of the run-up; None for none.
        requested_changes: requested lane changes, in order.
    """

    scenario: Scenario
    seed: int
    world: World
    lane: int
    hand_over_m: float
    end_m: float
    speed_mps: float
    off_m: float
    off_rad: float
    rpy_rad: Angles
    wrong_rpy_rad: Angles
    height_m: float
    lead: ScriptedLead | None
    requested_changes: tuple[RequestedChange, ...]

    def reported_rpy_rad(self, time_s: float) -> Angles:
        """Return the angles in ``liveCalibration`` at a time since the hand-over."""
        first, last = CALIBRATION_OFF_S
        return self.wrong_rpy_rad if first <= time_s < last else self.rpy_rad

    def loses(self, stream: int, frame_id: int) -> bool:
        """Return whether a camera fails to deliver a frame."""
        share = self.scenario.lost_frames
        if share == 0.0:
            return False
        rng = np.random.default_rng((self.seed, 7, stream, frame_id))
        return float(rng.random()) < share


@dataclass(frozen=True, slots=True)
class _Place:
    """The place and the speed of a hand-over."""

    world: World
    lane: int
    hand_over_m: float
    speed_mps: float


def make_trial(scenario: Scenario, seed: int, length_m: float | None = None) -> Trial:
    """Return the trial of a non-negative seed; the default length is the scenario's."""
    rng = np.random.default_rng((seed, zlib.crc32(scenario.name.encode())))
    length = scenario.length_m if length_m is None else length_m
    world = make_world(scenario, seed, length)
    speed = _speed_of(scenario, world, rng)
    lane = int(rng.integers(world.lanes.count))
    place = _Place(world, lane, RUN_UP_FROM_M + RUN_UP_S * speed, speed)
    rpy = (0.0, float(rng.uniform(-0.03, 0.06)), float(rng.uniform(-0.03, 0.03)))
    error = scenario.calibration_off_deg * _RADIANS * _side(rng)
    return Trial(
        scenario=scenario,
        seed=seed,
        world=world,
        lane=lane,
        hand_over_m=place.hand_over_m,
        end_m=place.hand_over_m + length,
        speed_mps=speed,
        off_m=scenario.off_m * _side(rng),
        off_rad=scenario.off_deg * _RADIANS * _side(rng),
        rpy_rad=rpy,
        wrong_rpy_rad=(rpy[0], rpy[1] + 0.5 * error, rpy[2] + error),
        height_m=float(rng.uniform(1.17, 1.27)),
        lead=_lead_of(speed, rng) if scenario.lead else None,
        requested_changes=_draw_changes(place, length, scenario.lane_change_every_m, rng),
    )


def make_world(scenario: Scenario, seed: int, length_m: float) -> World:
    """Return the road of a seed, modified for the scenario."""
    fastest = 40.0 if scenario.speed_mps is None else scenario.speed_mps[1]
    whole_m = RUN_UP_FROM_M + RUN_UP_S * fastest + length_m + ROAD_BEYOND_M
    number = FIRST_WORLD + seed
    world = random_world(number, whole_m)
    if scenario.lane_change_every_m:
        # Use the first road, in steps of FIRST_WORLD, that has a second lane and is fast enough.
        while world.lanes.count < 2 or world.speed_limit_mps < _LANE_CHANGE_MIN_MPS:
            number += FIRST_WORLD
            world = random_world(number, whole_m)
    if scenario.sharp:
        rng = np.random.default_rng((number, zlib.crc32(b"sharp")))
        road = straights_and_arcs(rng, whole_m, _SHARP * world.speed_limit_mps)
        world = replace(world, road=road)
    scenery = world.scenery
    if scenario.light is not None:
        scenery = replace(scenery, light=scenario.light)
    if scenario.rain is not None:
        scenery = replace(scenery, rain=scenario.rain, cloud=1.0)
    return replace(world, scenery=scenery)


def _speed_of(scenario: Scenario, world: World, rng: np.random.Generator) -> float:
    # In traffic, cars are slower than the road allows.
    wanted = world.speed_limit_mps * (_IN_TRAFFIC if scenario.traffic else 1.0)
    if scenario.speed_mps is not None:
        wanted = float(rng.uniform(*scenario.speed_mps))
    # The run-up ends about 50 m from its start for slow cars, and 200 m for fast ones.
    road, beyond_m, lateral = world.road, 20.0, _RUN_UP_LATERAL_MPS2
    if scenario.off_m:
        beyond_m, lateral = scenario.counts_from_m, RECOVERY_LATERAL_MPS2
    beginning = (road.s_m >= 0.0) & (road.s_m <= RUN_UP_FROM_M + RUN_UP_S * wanted + beyond_m)
    sharpest = max(1e-6, float(np.abs(road.curvature_1pm[beginning]).max()))
    return min(wanted, float(np.sqrt(lateral / sharpest)))


def _side(rng: np.random.Generator) -> int:
    return (LEFT, RIGHT)[int(rng.integers(2))]


def _lead_of(speed_mps: float, rng: np.random.Generator) -> ScriptedLead:
    """Draw a lead car: 1.5 to 2.5 s ahead, braking at 1.5 to 3.5 m/s2 after 2 to 6 s."""
    gap_m = speed_mps * float(rng.uniform(1.5, 2.5))
    brakes_s = RUN_UP_S + float(rng.uniform(2.0, 6.0))
    braking = float(rng.uniform(1.5, 3.5))
    stands_s = brakes_s + speed_mps / braking
    return ScriptedLead(gap_m, ((0.0, speed_mps), (brakes_s, speed_mps), (stands_s, 0.0)))


def _draw_changes(
    place: _Place, length_m: float, every_m: float, rng: np.random.Generator
) -> tuple[RequestedChange, ...]:
    """Draw lane changes to existing lanes."""
    if not every_m:
        return ()
    requested_changes, lane = [], place.lane
    for number in range(int(length_m / every_m)):
        side = _side(rng)
        if not 0 <= lane + side < place.world.lanes.count:
            side = -side
        lane += side
        requested_changes.append(
            RequestedChange(place.hand_over_m + (number + 0.2) * every_m, side)
        )
    return tuple(requested_changes)
