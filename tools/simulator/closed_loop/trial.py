"""One drive of a scenario, made from a seed: road, place, mounting, and what happens on the way.

Two drives of one seed share their road; everything else is drawn for the scenario. The seeds of the
roads begin far from those that models are trained on, so a drive is on a road that no model saw.
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
        length_m: how far is driven after the hand-over, unless the user says otherwise.
        speed_mps: lowest and highest speed at the hand-over; None: the road's limit.
        off_m: how far from the lane's centre the car is handed over, to a side that the seed says.
        off_deg: by how much it points elsewhere than the road then, to either side.
        counts_from_m: from where on offsets and departures count; a recovery is judged there.
        sharp: the road has curves that need slowing down.
        traffic: other cars drive on the road.
        lead: a car ahead brakes to a stop.
        lane_change_every_m: how far apart the driver asks for a lane change; 0: never.
        lost_frames: share of the frames that a camera fails to deliver, each camera by itself.
        calibration_off_deg: by how much ``liveCalibration`` errs in yaw, and by half of it in
            pitch, for `CALIBRATION_OFF_S`; then it is right.
        light: 0 is night, 1 is noon; None: as the road's seed has it.
        rain: 0 is none, 1 is heavy; None: as the road's seed has it.
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
    Scenario("calibration", "a calibration that is off, then right", calibration_off_deg=1.0),
    Scenario("night", "headlights only", light=0.0),
    Scenario("rain", "heavy rain", rain=1.0),
)
SCENARIOS: Mapping[str, Scenario] = MappingProxyType({one.name: one for one in _ALL})

# Training draws its roads below this.
FIRST_WORLD = 1_000_000_000
# Somebody else drives first, for as long as the model's history reaches back.
RUN_UP_S = 5.0
# The run-up begins here, the hand-over is `RUN_UP_S` later.
RUN_UP_FROM_M = 10.0
# A drive ends with the frame after its last metre; what can be seen from there is the road's.
ROAD_BEYOND_M = 50.0
# A road with sharp curves is one that was built for so much less than its limit.
_SHARP = 0.65
CALIBRATION_OFF_S = (4.0, 14.0)
# A driver's hand at the wheel is to be comfortable while nobody slows down for curves.
_RUN_UP_LATERAL_MPS2 = 2.0
# The way back to the lane takes up to 2 m/s2 by itself, of the 3 that the car allows.
RECOVERY_LATERAL_MPS2 = 1.2
_LANE_CHANGE_MIN_MPS = 12.0
_IN_TRAFFIC = 0.85
_RADIANS = 0.017453292519943295

Angles = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Wish:
    """The driver asks for a lane change where the blinker goes on at `s_m`."""

    s_m: float
    side: int


@dataclass(frozen=True, slots=True)
class Trial:
    """Everything that one drive depends on; equal trials give equal drives.

    Attributes:
        scenario, seed: its kind and the user's number.
        lane: where the car is handed over.
        hand_over_m: arc length of that place.
        end_m: where the drive is over.
        speed_mps: at the hand-over.
        off_m: from the lane's centre there, positive to the right.
        off_rad: of the car against the road there, positive to the right.
        rpy_rad: how the cameras are mounted (device from calib).
        wrong_rpy_rad: the value of ``liveCalibration`` meanwhile, see `told_rpy_rad`.
        height_m: of the cameras.
        lead: a car that brakes, by times from the beginning of the run-up; None: none.
        wishes: lane changes, in order.
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
    wishes: tuple[Wish, ...]

    def told_rpy_rad(self, time_s: float) -> Angles:
        """Return the angles in ``liveCalibration`` at a time from the hand-over."""
        first, last = CALIBRATION_OFF_S
        return self.wrong_rpy_rad if first <= time_s < last else self.rpy_rad

    def loses(self, stream: int, frame_id: int) -> bool:
        """Tell whether a camera fails to deliver a frame."""
        share = self.scenario.lost_frames
        if share == 0.0:
            return False
        rng = np.random.default_rng((self.seed, 7, stream, frame_id))
        return float(rng.random()) < share


@dataclass(frozen=True, slots=True)
class _Place:
    """Where and how fast a car is handed over."""

    world: World
    lane: int
    hand_over_m: float
    speed_mps: float


def make_trial(scenario: Scenario, seed: int, length_m: float | None = None) -> Trial:
    """Make a drive of a seed (not negative); without a length it has the scenario's."""
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
        wishes=_wishes_of(place, length, scenario.lane_change_every_m, rng),
    )


def make_world(scenario: Scenario, seed: int, length_m: float) -> World:
    """Return the road of a drive: that of the seed, changed for the scenario."""
    fastest = 40.0 if scenario.speed_mps is None else scenario.speed_mps[1]
    whole_m = RUN_UP_FROM_M + RUN_UP_S * fastest + length_m + ROAD_BEYOND_M
    number = FIRST_WORLD + seed
    world = random_world(number, whole_m)
    if scenario.lane_change_every_m:
        # The first road from that seed on that has a lane to change to.
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
    # Behind others nobody drives as fast as the road allows.
    wanted = world.speed_limit_mps * (_IN_TRAFFIC if scenario.traffic else 1.0)
    if scenario.speed_mps is not None:
        wanted = float(rng.uniform(*scenario.speed_mps))
    # The run-up ends at 50 m from the slowest, at some 200 m from the fastest.
    road, beyond_m, lateral = world.road, 20.0, _RUN_UP_LATERAL_MPS2
    if scenario.off_m:
        beyond_m, lateral = scenario.counts_from_m, RECOVERY_LATERAL_MPS2
    beginning = (road.s_m >= 0.0) & (road.s_m <= RUN_UP_FROM_M + RUN_UP_S * wanted + beyond_m)
    sharpest = max(1e-6, float(np.abs(road.curvature_1pm[beginning]).max()))
    return min(wanted, float(np.sqrt(lateral / sharpest)))


def _side(rng: np.random.Generator) -> int:
    return (LEFT, RIGHT)[int(rng.integers(2))]


def _lead_of(speed_mps: float, rng: np.random.Generator) -> ScriptedLead:
    """Draw the car ahead: 1.5 to 2.5 s away, braking at 1.5 to 3.5 m/s2 after 2 to 6 s."""
    gap_m = speed_mps * float(rng.uniform(1.5, 2.5))
    brakes_s = RUN_UP_S + float(rng.uniform(2.0, 6.0))
    braking = float(rng.uniform(1.5, 3.5))
    stands_s = brakes_s + speed_mps / braking
    return ScriptedLead(gap_m, ((0.0, speed_mps), (brakes_s, speed_mps), (stands_s, 0.0)))


def _wishes_of(
    place: _Place, length_m: float, every_m: float, rng: np.random.Generator
) -> tuple[Wish, ...]:
    """Draw lane changes to lanes that exist."""
    if not every_m:
        return ()
    wishes, lane = [], place.lane
    for number in range(int(length_m / every_m)):
        side = _side(rng)
        if not 0 <= lane + side < place.world.lanes.count:
            side = -side
        lane += side
        wishes.append(Wish(place.hand_over_m + (number + 0.2) * every_m, side))
    return tuple(wishes)
