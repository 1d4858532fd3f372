"""What is read of the vehicle: each message once, within bounds, and what silence does to it."""

import math
from typing import Any

import pytest

from cereal.pubsub import SubMaster
from cereal.schema import new_event
from modeld.state.loop_state import Fault
from modeld.vehicle.desire import VehicleState
from modeld.vehicle.inputs import SUBSCRIPTIONS, BusInputs, BusReader
from modeld.vehicle.validity import Freshness
from tests.modeld.bench import MS, Car, Log
from tests.modeld.conftest import make_episodes

NO_CAR_STATE = ("no carState", "no carState since 0.5 s")


class Reader(Car):
    def __init__(self, *, live: bool = True, **options: Any) -> None:
        super().__init__()
        self.messages = SubMaster(SUBSCRIPTIONS, self.transport, self.clock)
        self.episodes = make_episodes(self.clock)
        fresh = Freshness(self.messages, enabled=live)
        self.reader = BusReader(self.messages, self.episodes, freshness=fresh, **options)

    def read(self, after_ms: int = 0) -> BusInputs:
        self.clock.advance_ns(after_ms * MS)
        self.messages.update(0)
        return self.reader.read(self.clock.now_ns())

    def count(self, fault: Fault) -> int:
        return self.episodes.state.faults[fault]


@pytest.fixture
def car() -> Reader:
    return Reader()


def test_before_any_message_the_defaults_hold_and_nothing_is_wrong(car: Reader) -> None:
    inputs = car.read()
    assert inputs == BusInputs(VehicleState(), False, 0.0, 0)
    assert car.read(after_ms=60_000) == inputs


def test_all_is_read_from_its_fields(car: Reader) -> None:
    signals = {
        "leftBlinker": "left_blinker",
        "rightBlinker": "right_blinker",
        "steeringPressed": "steering_pressed",
        "leftBlindspot": "left_blindspot",
        "rightBlindspot": "right_blindspot",
    }
    car.send("carControl", latActive=True)
    car.send("driverMonitoringState", isRHD=True)
    car.send("liveDelay", lateralDelay=0.25)
    car.send("roadCameraState", frameId=77)
    inputs = car.read()
    # One signal at a time, so that a swapped one shows.
    for name, field in signals.items():
        car.send("carState", vEgo=12.5, steeringTorque=-3.0, **{name: True})
        inputs = car.read()
        expected: dict[str, Any] = {field: True}
        assert inputs.vehicle == VehicleState(
            v_ego_mps=12.5, steering_torque=-3.0, lateral_active=True, **expected
        )
    assert (inputs.is_rhd, inputs.lateral_delay_s, inputs.road_frame_id) == (True, 0.25, 77)
    assert inputs.reasons == ()


@pytest.mark.parametrize("value", [math.nan, math.inf, -21.0, 101.0])
def test_an_impossible_speed_counts_as_0_and_marks(car: Reader, value: float, caplog: Log) -> None:
    car.send("carState", vEgo=value)
    inputs = car.read()
    assert inputs.vehicle.v_ego_mps == 0.0
    (reason,) = inputs.reasons
    assert reason.text.startswith("carState.vEgo: expected -20 to 100 m/s, found ")
    assert caplog.messages == [f"{reason.text}; it counts as 0"]
    # It holds as long as nothing newer has come, and no longer.
    assert [reason.kind for reason in car.read().reasons] == ["carState.vEgo out of bounds"]
    assert car.count(Fault.INPUT_REJECTED) == 1
    car.send("carState", vEgo=3.0)
    assert car.read().reasons == ()


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 2.1])
def test_an_impossible_delay_counts_as_0_and_marks(car: Reader, value: float) -> None:
    car.send("liveDelay", lateralDelay=value)
    inputs = car.read()
    assert inputs.lateral_delay_s == 0.0
    assert [reason.kind for reason in inputs.reasons] == ["liveDelay.lateralDelay out of bounds"]


@pytest.mark.parametrize(("speed", "delay"), [(-20.0, 0.0), (100.0, 2.0)])
def test_what_is_just_within_bounds_counts(speed: float, delay: float) -> None:
    car = Reader(clip_speed=False)
    car.send("carState", vEgo=speed)
    car.send("liveDelay", lateralDelay=delay)
    inputs = car.read()
    assert (inputs.vehicle.v_ego_mps, inputs.lateral_delay_s, inputs.reasons) == (speed, delay, ())


def test_an_impossible_torque_is_nobody_and_marks_nothing(car: Reader) -> None:
    car.send("carState", vEgo=3.0, steeringTorque=math.nan)
    inputs = car.read()
    assert inputs.vehicle == VehicleState(v_ego_mps=3.0)
    assert inputs.reasons == ()
    assert car.count(Fault.INPUT_REJECTED) == 1


@pytest.mark.parametrize(("clip_speed", "speed"), [(True, 0.0), (False, -1.0)])
def test_negative_speeds_are_a_matter_of_the_model(clip_speed: bool, speed: float) -> None:
    car = Reader(clip_speed=clip_speed)
    car.send("carState", vEgo=-1.0)
    inputs = car.read()
    assert (inputs.vehicle.v_ego_mps, inputs.reasons) == (speed, ())


def test_a_silent_car_keeps_its_speed_and_nobody_wants_anything(car: Reader) -> None:
    car.send("carState", vEgo=20.0, leftBlinker=True, steeringPressed=True, steeringTorque=2.0)
    assert car.read().vehicle.left_blinker
    assert car.read(after_ms=499).reasons == ()
    inputs = car.read(after_ms=1)
    assert inputs.vehicle == VehicleState(v_ego_mps=20.0)
    assert inputs.reasons == (NO_CAR_STATE,)
    assert car.read(after_ms=3_500).reasons[0].text == "no carState since 4.0 s"
    car.send("carState", vEgo=21.0, leftBlinker=True)
    inputs = car.read()
    assert (inputs.vehicle.left_blinker, inputs.reasons) == (True, ())


def test_a_sender_that_repeats_itself_is_silent(car: Reader) -> None:
    event = car.bus.new("carState")
    event.carState.vEgo = 20.0
    # One that does not stamp its messages cannot be judged by that.
    unstamped = new_event("carState", mono_time_ns=0)
    for data, reasons in (
        (event.to_bytes(), [()] * 10 + [(NO_CAR_STATE,)]),
        (unstamped.to_bytes(), [()] * 20),
    ):
        for expected in reasons:
            car.bus.send("carState", data)
            assert car.read(after_ms=50).reasons == expected


def test_without_car_control_nobody_steers_and_nothing_is_marked(car: Reader) -> None:
    car.send("carControl", latActive=True)
    assert car.read().vehicle.lateral_active
    assert car.read(after_ms=499).vehicle.lateral_active
    inputs = car.read(after_ms=1)
    assert (inputs.vehicle.lateral_active, inputs.reasons) == (False, ())


@pytest.mark.parametrize("live", [True, False])
def test_slow_services_may_be_silent_for_ever_and_all_where_time_runs_unevenly(live: bool) -> None:
    car = Reader(live=live)
    car.send("liveDelay", lateralDelay=0.25)
    car.send("driverMonitoringState", isRHD=True)
    car.send("roadCameraState", frameId=7)
    if not live:
        car.send("carState", vEgo=20.0, leftBlinker=True)
        car.send("carControl", latActive=True)
    car.read()
    inputs = car.read(after_ms=600_000)
    assert (inputs.lateral_delay_s, inputs.is_rhd, inputs.road_frame_id) == (0.25, True, 7)
    assert (inputs.vehicle.left_blinker, inputs.vehicle.lateral_active) == (not live, not live)
    assert inputs.reasons == ()


def test_garbage_is_counted_and_its_sender_named(car: Reader, caplog: Log) -> None:
    for _ in range(3):
        car.bus.send("carState", b"garbage!" * 4)
        car.read(after_ms=50)
    car.bus.send("liveCalibration", car.bus.new("liveDelay"))
    car.read(after_ms=50)
    assert car.count(Fault.MESSAGE_REJECTED) == 4
    assert [text.split(": ")[:2] for text in caplog.messages] == [
        ["carState", "message rejected"],
        ["liveCalibration", "message rejected"],
    ]
    assert "expected liveCalibration, got liveDelay" in caplog.text
