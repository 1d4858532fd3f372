"""Rows about openpilot's camera process: gone and back, and something else at its place."""

import time
from collections.abc import Iterator

import pytest

from tests.cereal.shared import own_rings
from tests.faults.checks import check_logged, check_meanwhile, check_resumed
from tests.faults.table import Row
from tests.faults.vision_cameras import VisionCameras
from tests.faults.world import World, running_world

pytestmark = [pytest.mark.opencl, pytest.mark.alone, pytest.mark.slow]


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with (
        own_rings() as prefix,
        running_world(tmp_path_factory.mktemp("v"), prefix=prefix) as world,
    ):
        yield world


def test_visionipc_camera_restarts(world: World, row: Row) -> None:
    start_ns = time.monotonic_ns()
    world.cameras.restart()
    check_resumed(world, row, start_ns)
    time.sleep(0.5)
    check_meanwhile(world, row, start_ns)
    check_logged(world, row, start_ns)


def test_no_visionipc_camera_at_its_place(world: World, row: Row) -> None:
    cameras = world.cameras
    assert isinstance(cameras, VisionCameras)
    cameras.close_rings()
    start_ns = time.monotonic_ns()
    cameras.path.write_bytes(b"x")
    time.sleep(0.3)
    silent_ns = time.monotonic_ns()
    check_logged(world, row, start_ns, 5.0)
    check_meanwhile(world, row, silent_ns)
    cameras.path.unlink()
    cameras.reset()
    check_resumed(world, row)
