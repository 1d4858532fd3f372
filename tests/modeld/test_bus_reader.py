"""What is read of the vehicle: each message once, within bounds, and what silence does to it."""

import logging
import math
from typing import Any

import pytest

from cereal.clock import ManualClock
from cereal.pubsub import PubMaster, SubMaster
from cereal.schema import new_event
from cereal.transport import MemoryTransport
from modeld.bus_reader import BusReader
from modeld.desire import VehicleState
from modeld.inputs import SUBSCRIPTIONS, BusInputs
from modeld.loop_state import Fault
from modeld.validity import Freshness
from tests.modeld.conftest import make_episodes

MS = 1_000_000


class Bus:
    """A bus, the car's end of it, and a reader on a clock set by hand."""

    def __init__(self, *, live: bool = True, **options: Any) -> None:
        self.clock = ManualClock(1_000 * MS)
        transport = MemoryTransport()
        self.car = PubMaster(SUBSCRIPTIONS, transport, self.clock)
        self.messages = SubMaster(SUBSCRIPTIONS, transport, self.clock)
        self.episodes = make_episodes(self.clock)
        fresh = Freshness(self.messages, enabled=live)
        self.reader = BusReader(self.messages, self.episodes, freshness=fresh, **options)

    def send(self, service: str, **values: Any) -> None:
        event = self.car.new(service)
        for name, value in values.items():
            setattr(getattr(event, service), name, value)
        self.car.send(service, event)

    def read(self, after_ms: int = 0) -> BusInputs:
        self.clock.advance_ns(after_ms * MS)
        self.messages.update(0)
        return self.reader.read(self.clock.now_ns())

    def count(self, fault: Fault) -> int:
        return self.episodes.state.faults[fault]


def kinds(inputs: BusInputs) -> list[str]:
    return [reason.kind for reason in inputs.reasons]


def test_before_any_message_the_defaults_hold_and_nothing_is_wrong() -> None:
    bus = Bus()
    inputs = bus.read()
    assert inputs == BusInputs(VehicleState(), False, 0.0, 0)
    assert bus.read(after_ms=60_000) == inputs


def test_all_is_read_from_its_fields() -> None:
    bus = Bus()
    bus.send(
        "carState",
        vEgo=12.5,
        leftBlinker=True,
        steeringPressed=True,
        steeringTorque=-3.0,
        rightBlindspot=True,
    )
    bus.send("carControl", latActive=True)
    bus.send("driverMonitoringState", isRHD=True)
    bus.send("liveDelay", lateralDelay=0.25)
    bus.send("roadCameraState", frameId=77)
    inputs = bus.read()
    assert inputs.vehicle == VehicleState(
        v_ego_mps=12.5,
        left_blinker=True,
        right_blinker=False,
        steering_pressed=True,
        steering_torque=-3.0,
        left_blindspot=False,
        right_blindspot=True,
        lateral_active=True,
    )
    assert (inputs.is_rhd, inputs.lateral_delay_s, inputs.road_frame_id) == (True, 0.25, 77)
    assert inputs.reasons == ()


@pytest.mark.parametrize("value", [math.nan, math.inf, -21.0, 101.0])
def test_an_impossible_speed_counts_as_0_and_marks(
    value: float, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()
    bus.send("carState", vEgo=value)
    inputs = bus.read()
    assert inputs.vehicle.v_ego_mps == 0.0
    (reason,) = inputs.reasons
    assert reason.text.startswith("carState.vEgo: expected -20 to 100 m/s, found ")
    assert bus.count(Fault.INPUT_REJECTED) == 1
    assert caplog.messages == [f"{reason.text}; it counts as 0"]
    # It holds as long as nothing newer has come, and no longer.
    assert kinds(bus.read()) == ["carState.vEgo out of bounds"]
    assert bus.count(Fault.INPUT_REJECTED) == 1
    bus.send("carState", vEgo=3.0)
    assert bus.read().reasons == ()


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 2.1])
def test_an_impossible_delay_counts_as_0_and_marks(value: float) -> None:
    bus = Bus()
    bus.send("liveDelay", lateralDelay=value)
    inputs = bus.read()
    assert inputs.lateral_delay_s == 0.0
    assert kinds(inputs) == ["liveDelay.lateralDelay out of bounds"]


def test_an_impossible_torque_is_nobody_and_marks_nothing() -> None:
    bus = Bus()
    bus.send("carState", vEgo=3.0, steeringTorque=math.nan)
    inputs = bus.read()
    assert inputs.vehicle == VehicleState(v_ego_mps=3.0)
    assert inputs.reasons == ()
    assert bus.count(Fault.INPUT_REJECTED) == 1


@pytest.mark.parametrize(("clip_speed", "speed"), [(True, 0.0), (False, -1.0)])
def test_negative_speeds_are_a_matter_of_the_model(clip_speed: bool, speed: float) -> None:
    bus = Bus(clip_speed=clip_speed)
    bus.send("carState", vEgo=-1.0)
    inputs = bus.read()
    assert inputs.vehicle.v_ego_mps == speed
    assert inputs.reasons == ()


def test_a_silent_car_keeps_its_speed_and_nobody_wants_anything() -> None:
    bus = Bus()
    bus.send("carState", vEgo=20.0, leftBlinker=True, steeringPressed=True, steeringTorque=2.0)
    assert bus.read().vehicle.left_blinker
    assert bus.read(after_ms=499).reasons == ()
    inputs = bus.read(after_ms=1)
    assert inputs.vehicle == VehicleState(v_ego_mps=20.0)
    assert inputs.reasons == (("no carState", "no carState since 0.5 s"),)
    assert bus.read(after_ms=3_500).reasons[0].text == "no carState since 4.0 s"
    bus.send("carState", vEgo=21.0, leftBlinker=True)
    inputs = bus.read()
    assert (inputs.vehicle.left_blinker, inputs.reasons) == (True, ())


def test_a_sender_that_repeats_itself_is_silent() -> None:
    bus = Bus()
    event = bus.car.new("carState")
    event.carState.vEgo = 20.0
    data = event.to_bytes()
    for _ in range(10):
        bus.car.send("carState", data)
        assert bus.read(after_ms=50).reasons == ()
    bus.car.send("carState", data)
    assert bus.read(after_ms=50).reasons == (("no carState", "no carState since 0.5 s"),)
    # One that does not stamp its messages cannot be judged by that.
    unstamped = new_event("carState", mono_time_ns=0).to_bytes()
    for _ in range(20):
        bus.car.send("carState", unstamped)
        assert bus.read(after_ms=50).reasons == ()


def test_without_car_control_nobody_steers_and_nothing_is_marked() -> None:
    bus = Bus()
    bus.send("carControl", latActive=True)
    assert bus.read().vehicle.lateral_active
    assert bus.read(after_ms=499).vehicle.lateral_active
    inputs = bus.read(after_ms=1)
    assert (inputs.vehicle.lateral_active, inputs.reasons) == (False, ())


def test_slow_services_may_be_silent_for_ever() -> None:
    bus = Bus()
    bus.send("liveDelay", lateralDelay=0.25)
    bus.send("driverMonitoringState", isRHD=True)
    bus.send("roadCameraState", frameId=7)
    bus.read()
    inputs = bus.read(after_ms=600_000)
    assert (inputs.lateral_delay_s, inputs.is_rhd, inputs.road_frame_id) == (0.25, True, 7)
    assert inputs.reasons == ()


def test_silence_is_not_judged_where_time_runs_unevenly() -> None:
    bus = Bus(live=False)
    bus.send("carState", vEgo=20.0, leftBlinker=True)
    bus.send("carControl", latActive=True)
    bus.read()
    inputs = bus.read(after_ms=600_000)
    assert inputs.vehicle.left_blinker
    assert inputs.vehicle.lateral_active
    assert inputs.reasons == ()


def test_garbage_is_counted_and_its_sender_named(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            bus.car.send("carState", b"garbage!" * 4)
            bus.read(after_ms=50)
        wrong = bus.car.new("liveDelay")
        bus.car.send("liveCalibration", wrong)
        bus.read(after_ms=50)
    assert bus.count(Fault.MESSAGE_REJECTED) == 4
    assert [text.split(": ")[:2] for text in caplog.messages] == [
        ["carState", "message rejected"],
        ["liveCalibration", "message rejected"],
    ]
    assert "expected liveCalibration, got liveDelay" in caplog.text
