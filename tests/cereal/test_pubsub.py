"""The newest messages of several services, and whether they may be relied on."""

import struct
import threading
from typing import Any

import pytest

from cereal.clock import ManualClock, MonotonicClock
from cereal.errors import ServiceError, TransportError
from cereal.pubsub import FrequencyTracker, PubMaster, SubMaster
from cereal.schema import new_event
from cereal.transport import MemoryTransport

MS = 1_000_000
HOUR_MS = 3600 * 1000
BOTH = ("carState", "liveCalibration")


class Bus:
    """A transport, a clock and a sender of everything the tests need."""

    def __init__(self) -> None:
        self.transport = MemoryTransport()
        self.clock = ManualClock(1000 * MS)
        self.sent = ["carState", "liveCalibration", "driverMonitoringState", "logMessage"]
        self.publisher = PubMaster(self.sent, self.transport, self.clock)

    def listen(self, *services: str, **options: Any) -> SubMaster:
        return SubMaster(services, self.transport, self.clock, **options)

    def send(self, service: str, *, valid: bool = True) -> None:
        event = self.publisher.new(service)
        event.valid = valid
        self.publisher.send(service, event)

    def run(self, count: int, step_ms: int, *listeners: SubMaster) -> None:
        """Send carState so often, updating all who listen after each."""
        for _ in range(count):
            self.send("carState")
            for one in listeners:
                one.update()
            self.clock.advance_ns(step_ms * MS)


@pytest.fixture
def bus() -> Bus:
    return Bus()


def test_before_the_first_message_there_are_defaults_and_nothing_is_well(bus: Bus) -> None:
    sm = bus.listen(*BOTH)
    assert sm.frame == -1
    sm.update()
    assert sm.frame == 0
    assert sm["carState"].vEgo == 0
    assert list(sm["liveCalibration"].rpyCalib) == []
    for state in (sm.seen, sm.updated, sm.alive, sm.valid, sm.freq_ok):
        assert state == dict.fromkeys(BOTH, False)
    for numbers in (sm.recv_time_ns, sm.recv_frame, sm.mono_time_ns, sm.rejected):
        assert numbers == dict.fromkeys(BOTH, 0)
    assert not sm.all_checks()
    assert "carState" in sm
    assert "modelV2" not in sm


def test_update_takes_the_newest_message(bus: Bus) -> None:
    sm = bus.listen(*BOTH)
    for speed in (1.0, 2.0, 3.0):
        event = bus.publisher.new("carState")
        assert not event.valid
        event.valid = True
        event.carState.vEgo = speed
        bus.publisher.send("carState", event.to_bytes())
    stamp = bus.clock.now_ns()
    bus.clock.advance_ns(5 * MS)
    sm.update()
    assert sm["carState"].vEgo == 3.0
    for state in (sm.updated, sm.seen, sm.valid, sm.alive):
        assert state == {"carState": True, "liveCalibration": False}
    assert sm.mono_time_ns["carState"] == stamp
    assert sm.recv_time_ns["carState"] == stamp + 5 * MS
    assert sm.recv_frame["carState"] == 0
    sm.update()
    assert not sm.updated["carState"]
    assert sm["carState"].vEgo == 3.0
    assert sm.recv_frame["carState"] == 0
    assert sm.frame == 1


def test_valid_follows_the_sender(bus: Bus) -> None:
    sm = bus.listen("carState")
    for valid in (True, False, True):
        bus.send("carState", valid=valid)
        sm.update()
        assert sm.valid["carState"] is valid
        assert sm.all_valid() is valid


def test_alive_ends_ten_periods_after_the_newest_message(bus: Bus) -> None:
    sm = bus.listen(*BOTH)
    for service in BOTH:
        bus.send(service)
    sm.update()
    # 10 periods of 100 Hz are 100 ms; of 4 Hz 2.5 s.
    for step_ns, expected in (
        (100 * MS - 1, [True, True]),
        (1, [False, True]),
        (2400 * MS - 1, [False, True]),
        (1, [False, False]),
    ):
        bus.clock.advance_ns(step_ns)
        sm.update()
        assert list(sm.alive.values()) == expected
        assert sm.all_alive() is all(expected)
        assert sm.all_alive(["liveCalibration"]) is expected[1]


def test_ignored_services_are_left_out_of_the_checks(bus: Bus) -> None:
    sm = bus.listen(*BOTH, ignore_alive=BOTH[1:], ignore_valid=BOTH[1:])
    bus.run(200, 10, sm)
    assert [sm.all_alive(), sm.all_valid(), sm.all_freq_ok(), sm.all_checks()] == [True] * 4
    assert not sm.alive["liveCalibration"]


@pytest.mark.parametrize("ignored", ["alive", "valid", "freq"])
def test_each_check_has_services_to_ignore(bus: Bus, ignored: str) -> None:
    sm = bus.listen("carState", **{f"ignore_{ignored}": ["carState"]})
    sm.update()
    # Who need not be alive need not keep its rate.
    assert sm.all_alive() is (ignored == "alive")
    assert sm.all_valid() is (ignored == "valid")
    assert sm.all_freq_ok() is (ignored in ("alive", "freq"))


def test_service_on_demand_is_alive_and_at_its_rate_and_valid_as_its_message_says(bus: Bus) -> None:
    sm = bus.listen("logMessage")
    sm.update()
    assert sm.all_checks()
    bus.clock.advance_ns(HOUR_MS * MS)
    for valid in (False, True, False):
        bus.send("logMessage", valid=valid)
        sm.update()
        assert sm.seen["logMessage"]
        assert sm.all_alive()
        assert sm.all_freq_ok()
        assert sm.valid["logMessage"] is valid
        sm.update()
        assert sm.all_checks() is valid


def test_simulation_needs_no_even_time(bus: Bus) -> None:
    sm = bus.listen("carState", simulation=True)
    assert not sm.all_freq_ok()
    sm.update()
    assert sm.all_freq_ok()
    assert not sm.all_alive()
    bus.run(1, HOUR_MS, sm)
    sm.update()
    assert sm.all_checks()


def test_publisher_waits_for_readers_and_until_they_have_read(bus: Bus) -> None:
    publisher, clock = bus.publisher, bus.clock
    start = clock.now_ns()
    assert not publisher.wait_for_readers(timeout_s=1)
    assert clock.now_ns() == start + 1000 * MS
    some = bus.listen("carState")
    assert publisher.wait_for_readers(["carState"], timeout_s=1)
    assert not publisher.wait_for_readers(["carState", "liveCalibration"], timeout_s=0)
    others = bus.listen(*(name for name in bus.sent if name != "carState"))
    assert publisher.wait_for_readers(timeout_s=0)
    assert clock.now_ns() == start + 1000 * MS
    assert publisher.all_readers_updated("carState")
    bus.send("carState")
    assert not publisher.all_readers_updated("carState")
    assert not publisher.wait_for_readers_to_update("carState", 0.25)
    assert clock.now_ns() == start + 1250 * MS
    some.update()
    assert publisher.wait_for_readers_to_update("carState", 0)
    some.close()
    others.close()
    assert not publisher.all_readers_updated("carState")
    for call in (
        publisher.all_readers_updated,
        lambda name: publisher.wait_for_readers([name], timeout_s=0),
    ):
        with pytest.raises(ServiceError, match="got 'modelV2'"):
            call("modelV2")


def test_readers_that_come_meanwhile_are_noticed(bus: Bus) -> None:
    clock = MonotonicClock()
    publisher = PubMaster(["modelV2"], bus.transport, clock)
    timer = threading.Timer(0.05, bus.transport.subscriber, ["modelV2"])
    timer.start()
    assert publisher.wait_for_readers(timeout_s=30)
    timer.join()


def test_other_messages_on_a_service_are_rejected(bus: Bus) -> None:
    sm = bus.listen("carState")
    other = new_event("carControl", mono_time_ns=1, valid=True).to_bytes()
    for data in (b"", b"no event", bytes(64), other):
        bus.publisher.send("carState", data)
        sm.update()
        assert not sm.updated["carState"]
    assert sm.rejected == {"carState": 4}
    assert "expected carState, got carControl" in sm.rejected_why["carState"]
    assert not sm.seen["carState"]


def test_driver_monitoring_of_2026_is_read_under_the_same_name(bus: Bus) -> None:
    sm = bus.listen("driverMonitoringState")
    event = new_event("driverMonitoringStateV2", mono_time_ns=1, valid=True)
    event.driverMonitoringStateV2.isRHD = True
    bus.publisher.send("driverMonitoringState", event.to_bytes())
    sm.update()
    # Whoever asks again gets a new reader of the same message.
    assert [sm["driverMonitoringState"].isRHD for _ in range(2)] == [True, True]
    assert sum(sm.rejected.values()) == 0


def test_update_waits_for_the_polled_service_only(bus: Bus) -> None:
    sm = bus.listen(*BOTH, poll="carState")
    bus.send("liveCalibration")
    timer = threading.Timer(0.05, bus.send, ["carState"])
    timer.start()
    sm.update(20_000)
    timer.join()
    assert sm.updated == {"carState": True, "liveCalibration": True}


def test_update_returns_after_the_timeout(bus: Bus) -> None:
    sm = bus.listen("carState")
    sm.update(5)
    assert sm.frame == 0
    assert not sm.updated["carState"]


@pytest.mark.parametrize(
    ("service_hz", "update_hz", "is_polled", "low_hz", "high_hz"),
    [
        # controlsd looks 60 times a second at 100 Hz: t = 60, low 60 / 2, high 60.
        (100, 60, False, 24, 72),
        # selfdrived looks 100 times a second at 20 Hz: t = 20, both 20.
        (20, 100, False, 16, 24), (100, 20, False, 16, 24),
        # A polled service is not expected faster than the updates, nor slower than once a second.
        (100, 20, True, 16, 24), (0.5, 100, True, 0.8, 1.2), (20, 20, True, 16, 24),
        (0.5, 0.5, True, 0.8, 1.2), (100, 100, False, 40, 120), (1, 0.1, False, 0.08, 0.12),
        # Twice as fast, either way, is not close any more.
        (40, 20, False, 16, 24), (39, 20, False, 8, 24), (20, 40, False, 16, 24),
        (20, 39, False, 8, 24),
    ],
)  # fmt: skip
def test_frequency_bounds_are_those_worked_by_hand(
    service_hz: float, update_hz: float, is_polled: bool, low_hz: float, high_hz: float
) -> None:
    tracker = FrequencyTracker(service_hz, update_hz, is_polled=is_polled)
    assert tracker.bounds_hz == pytest.approx((low_hz, high_hz))
    # A mean that is just within either bound is right, and one just outside is not.
    for rate_hz, is_ok in (
        (1.01 * low_hz, True), (0.99 * low_hz, False), (0.99 * high_hz, True),
        (1.01 * high_hz, False),
    ):  # fmt: skip
        tracker = FrequencyTracker(service_hz, update_hz, is_polled=is_polled)
        assert not tracker.is_ok()
        for i in range(500):
            tracker.record(round(i * 1e9 / rate_hz))
        assert tracker.is_ok() is is_ok


def test_either_window_may_be_right_and_both_move_on() -> None:
    """At 20 Hz: of 200 intervals, which are ten seconds, and of twenty."""
    tracker = FrequencyTracker(20, 20, is_polled=True)
    now = 0

    def after(count: int, step_ms: int) -> bool:
        nonlocal now
        for _ in range(count):
            now += step_ms * MS
            tracker.record(now)
        return tracker.is_ok()

    assert after(201, 50)
    # 200 intervals are on average at most 62.5 ms, 1 / 16 Hz, as long as 50 of them are double.
    assert after(50, 100)
    assert not after(1, 100)
    assert not after(149, 100)
    # Twenty with at most 62.5 ms: fifteen of them are right again.
    assert not after(14, 50)
    assert after(1, 50)


def test_without_a_polled_service_none_counts_as_polled(bus: Bus) -> None:
    """Updates at the fastest service's rate, 100 Hz: close rates are allowed half."""
    everything, polling = bus.listen("carState"), bus.listen("carState", poll="carState")
    bus.run(300, 10, everything, polling)
    assert everything.all_freq_ok()
    assert polling.all_freq_ok()
    bus.run(1100, 20, everything, polling)
    assert everything.all_freq_ok()
    assert not polling.all_freq_ok()


def test_newest_message_can_be_read_for_ever(bus: Bus) -> None:
    sm = bus.listen("modelV2")
    event = new_event("modelV2", mono_time_ns=1)
    event.modelV2.position.x = [1.0] * 33
    bus.transport.publisher("modelV2").send(event.to_bytes())
    sm.update()
    # 33 float32 are 17 words: after 62,000 times one reader would have followed its bound.
    assert all(sm["modelV2"].position.x[32] == 1.0 for _ in range(70_000))


def test_hostile_message_costs_a_subscriber_no_time(bus: Bus) -> None:
    """Half a billion elements of no size, in a list that fits into one word."""
    sm = bus.listen("liveCalibration", "pandaStates")
    endless = (2**29 - 1) << 3
    # pandaStates is member 79 of the union and itself the list.
    words = (4 << 32, 0x0001_0002_0000_0000, 9, 79, 1 | endless << 32)
    bus.transport.publisher("pandaStates").send(struct.pack("<5Q", *words))
    sm.update()
    assert sum(sm.rejected.values()) == 1
    assert list(sm["pandaStates"]) == []


def test_slow_services_are_not_judged_by_rate(bus: Bus) -> None:
    sm = bus.listen("carParams")
    sm.update()
    assert sm.all_freq_ok()
    assert not sm.all_alive()
    # Once a second is judged.
    often = bus.listen("modeldHealth")
    often.update()
    assert not often.all_freq_ok()


def test_names_are_checked(bus: Bus) -> None:
    with pytest.raises(ServiceError, match="'carstate'"):
        bus.listen("carstate")
    with pytest.raises(ServiceError, match="expected to poll"):
        bus.listen("carState", poll="modelV2")
    with pytest.raises(ServiceError, match="'carState' and 20 Hz"):
        bus.listen("carState", poll="carState", frequency_hz=20)
    with pytest.raises(ServiceError, match="got 'modelV2'"):
        bus.publisher.send("modelV2", b"")
    with pytest.raises(TransportError, match="second"):
        PubMaster(["carState"], bus.transport, bus.clock)


def test_close_frees_the_services(bus: Bus) -> None:
    sm = bus.listen("carState")
    bus.publisher.close()
    sm.close()
    again = PubMaster(["carState"], bus.transport, bus.clock)
    again.send("carState", b"x")
    sm.update()
    assert sum(sm.rejected.values()) == 0
