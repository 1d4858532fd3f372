"""A daemon for all tests of a file, well again before each, and the row of each test."""

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.faults.table import Row, rows
from tests.faults.world import World, running_world


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Row:
    """The row of docs/faults.md that names this test."""
    return rows()[request.node.originalname]


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_world(tmp_path_factory.mktemp("w"), faulty=True) as world:
        yield world


@pytest.fixture
def world(shared_world: World) -> Iterator[World]:
    """The daemon of this file; it must outlive the test, and says nothing of a defect."""
    shared_world.restore()
    service = shared_world.service
    start_ns = time.monotonic_ns()
    yield shared_world
    # systemd notices nothing; it counts from the last ping before the test.
    pings = [ping.arrived_ns for ping in service.pings(start_ns - service.watchdog_ns)]
    gaps = [after - before for before, after in pairwise([*pings, time.monotonic_ns()])]
    assert pings, service.text()
    assert max(gaps) < service.watchdog_ns, service.text()
    assert shared_world.service.life.code is None, shared_world.service.text()
    assert not shared_world.service.lines("Traceback"), shared_world.service.text()
