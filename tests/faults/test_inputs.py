"""Rows about messages: missing, frozen, out of bounds, garbage; and about those who listen."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import zmq

from tests.faults.checks import (
    check_logged,
    check_meanwhile,
    check_resumed,
    check_undisturbed,
)
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
    check_resumed(world, row, time.monotonic_ns())


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


def _angles(event: Any) -> None:
    event.liveCalibration.rpyCalib = [0.0, 1.5, 0.0]


def _two_angles(event: Any) -> None:
    event.liveCalibration.rpyCalib = [0.0, 0.1]


def _not_calibrated(event: Any) -> None:
    event.liveCalibration.calStatus = "invalid"


def _speed_nan(event: Any) -> None:
    event.carState.vEgo = float("nan")


def _speed(event: Any) -> None:
    event.carState.vEgo = 1e6


@pytest.mark.parametrize(
    ("service", "change"),
    [
        ("liveCalibration", _angles),
        ("liveCalibration", _two_angles),
        ("liveCalibration", _not_calibrated),
        ("carState", _speed_nan),
        ("carState", _speed),
    ],
)
def test_input_is_out_of_bounds(
    world: World, row: Row, service: str, change: Callable[[Any], None]
) -> None:
    changes = world.vehicle.changes
    _outage(world, row, lambda: changes.update({service: change}), changes.clear)


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
    check_resumed(world, row, time.monotonic_ns())


def test_subscriber_stalls(world: World, row: Row) -> None:
    """It connects, takes nothing, and its queues are full long before it goes."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.SUB)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 1)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(f"ipc://{world.directory}/bus/modelV2")
        time.sleep(0.2)
        start_ns = time.monotonic_ns()
        time.sleep(2.0)
        check_undisturbed(world, start_ns)
        check_logged(world, row, start_ns)
    finally:
        socket.close()
        context.term()
    check_resumed(world, row, time.monotonic_ns())
