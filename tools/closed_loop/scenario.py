"""What is driven: the table of scenarios. Each is a kind of drive; a seed makes one drive of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of drive.

    Attributes:
        name: as users write it.
        what: one line for people.
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
