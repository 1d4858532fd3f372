"""Rows about messages: missing, frozen, out of bounds, garbage; and about those who listen."""

import random
import time
from collections.abc import Callable

import pytest

from tests.faults.checks import (
    check_logged,
    check_meanwhile,
    check_resumed,
    check_undisturbed,
)
from tests.faults.disturb import stalled_subscriber
from tests.faults.table import Row
from tests.faults.world import World

pytestmark = [pytest.mark.opencl, pytest.mark.alone, pytest.mark.slow]
# Longer than any bound on the age of an input.
OUTAGE_S = 6.0
# The log joins what happens again within two seconds, and has one line a second of a kind.
QUIET_S = 2.5


def _wait_invalid(world: World, row: Row, start_ns: int, timeout_s: float = OUTAGE_S) -> None:
    """Messages go on, and are invalid until the input is back."""
    world.wait_message(lambda message: not message.valid, start_ns, timeout_s)
    invalid_ns = time.monotonic_ns()
    time.sleep(0.5)
    assert len(world.recorder.since(invalid_ns)) >= 5
    check_meanwhile(world, row, invalid_ns)


def _outage(world: World, row: Row, begin: Callable[[], object], end: Callable[[], object]) -> None:
    time.sleep(QUIET_S)
    start_ns = time.monotonic_ns()
    begin()
    _wait_invalid(world, row, start_ns)
    check_logged(world, row, start_ns)
    end()
    check_resumed(world, row)


def test_calibration_stops(world: World, row: Row) -> None:
    stopped = world.vehicle.stopped
    _outage(world, row, lambda: stopped.add("liveCalibration"), stopped.clear)


def test_car_state_stops(world: World, row: Row) -> None:
    stopped = world.vehicle.stopped
    _outage(world, row, lambda: stopped.add("carState"), stopped.clear)


@pytest.mark.parametrize("service", ["liveCalibration", "carState"])
def test_input_is_frozen(world: World, row: Row, service: str) -> None:
    """The same message, with its old stamp, comes again and again."""
    frozen = world.vehicle.frozen
    _outage(world, row, lambda: frozen.add(service), frozen.clear)


@pytest.mark.parametrize(
    "change",
    [
        {"liveCalibration": {"rpyCalib": [0.0, 1.5, 0.0]}},
        {"liveCalibration": {"rpyCalib": [0.0, 0.1]}},
        {"liveCalibration": {"calStatus": "invalid"}},
        {"carState": {"vEgo": float("nan")}},
        {"carState": {"vEgo": 1e6}},
    ],
    ids=["angles", "two angles", "not calibrated", "speed nan", "speed"],
)
def test_input_is_out_of_bounds(
    world: World, row: Row, change: dict[str, dict[str, object]]
) -> None:
    changes = world.vehicle.changes
    _outage(world, row, lambda: changes.update(change), changes.clear)


@pytest.mark.parametrize("service", ["carState", "liveCalibration"])
def test_garbage_on_the_bus(world: World, row: Row, service: str) -> None:
    time.sleep(QUIET_S)
    start_ns = time.monotonic_ns()
    for size in (0, 1, 8, 100_000, 100):
        world.vehicle.junk[service] = random.Random(size).randbytes(size)  # noqa: S311 -- repeatable
        time.sleep(0.3)
    check_logged(world, row, start_ns)
    # It goes on until the service counts as silent.
    _wait_invalid(world, row, start_ns)
    world.vehicle.reset()
    check_resumed(world, row)


def test_subscriber_stalls(world: World, row: Row) -> None:
    with stalled_subscriber(world):
        time.sleep(0.2)
        start_ns = time.monotonic_ns()
        time.sleep(2.0)
        check_undisturbed(world, start_ns)
        check_logged(world, row, start_ns)
    check_resumed(world, row)
