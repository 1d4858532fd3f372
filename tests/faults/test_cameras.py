"""Rows about cameras: late, frozen, damaged, gone, back, of another size, with another clock."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cereal.frames import DIRECTORY, FrameRingWriter, nv12_format
from tests.faults.cameras import NORMAL
from tests.faults.checks import (
    check_logged,
    check_meanwhile,
    check_resumed,
    first_back,
    wait_quiet,
)
from tests.faults.disturb import slow_run
from tests.faults.service import ROOT
from tests.faults.table import Row
from tests.faults.world import LOG_PAUSE_S, World, running_world
from tests.tools.tiny_driving import write_tiny_driving

pytestmark = [pytest.mark.opencl, pytest.mark.alone, pytest.mark.slow]
# Too large for the artifact, and one that it has room for and the configuration does not know.
TOO_LARGE, UNKNOWN = nv12_format(1024, 512), nv12_format(192, 96)


def test_late_frames(world: World, row: Row) -> None:
    start_ns = time.monotonic_ns()
    world.cameras.late_ns = 150_000_000
    time.sleep(1.0)
    seen = world.recorder.since(start_ns + 400_000_000)
    # What comes late is answered at once, one message a frame, as long as it comes.
    assert len(seen) >= 2
    assert [m.frame_id for m in seen] == sorted({m.frame_id for m in seen})
    world.cameras.late_ns = 0
    healed_ns = time.monotonic_ns()
    check_logged(world, row, start_ns)
    check_resumed(world, row, healed_ns)


def test_frozen_frames(world: World, row: Row) -> None:
    world.cameras.repeating = True
    time.sleep(0.2)
    start_ns = time.monotonic_ns()
    time.sleep(0.8)
    check_meanwhile(world, row, start_ns)
    world.cameras.repeating = False
    healed_ns = time.monotonic_ns()
    check_logged(world, row, start_ns - 200_000_000)
    check_resumed(world, row, healed_ns)


def test_pictures_stay_the_same(world: World, row: Row) -> None:
    """Ids and stamps go on, but the sensor is stuck, and the car drives."""
    start_ns = time.monotonic_ns()
    world.cameras.still = True
    world.wait_message(lambda m: not m.valid, start_ns, 3.0)
    check_logged(world, row, start_ns)
    world.cameras.still = False
    check_resumed(world, row)


def test_camera_sends_nothing(world: World, row: Row) -> None:
    start_ns = time.monotonic_ns()
    world.cameras.paused.update(("road", "wideRoad"))
    time.sleep(0.2)
    silent_ns = time.monotonic_ns()
    time.sleep(1.5)
    check_meanwhile(world, row, silent_ns)
    check_logged(world, row, start_ns)
    world.cameras.paused.clear()
    check_resumed(world, row)


def test_extra_camera_sends_nothing(world: World, row: Row) -> None:
    start_ns = time.monotonic_ns()
    world.cameras.paused.add("wideRoad")
    lost = world.wait_message(lambda m: not m.valid, start_ns, 2.0)
    assert lost.frame_id_extra == lost.frame_id
    check_logged(world, row, start_ns)
    world.cameras.paused.clear()
    check_resumed(world, row)


def test_camera_restarts_with_the_same_size(world: World, row: Row) -> None:
    start_ns = time.monotonic_ns()
    world.cameras.restart()
    check_resumed(world, row, start_ns)
    time.sleep(0.5)
    check_meanwhile(world, row, start_ns)
    check_logged(world, row, start_ns)


def test_camera_restarts_and_counts_from_1(world: World, row: Row) -> None:
    start_ns = time.monotonic_ns()
    world.cameras.restart(first_id=1)
    check_resumed(world, row, start_ns)
    check_logged(world, row, start_ns)
    check_meanwhile(world, row, start_ns)
    assert not first_back(world, start_ns).valid
    new = [m.frame_id for m in world.recorder.since(start_ns) if m.valid]
    assert new[-3:] == sorted(set(new[-3:]))
    assert new[-1] < 200


def test_camera_restarts_with_a_size_that_is_not_known(world: World, row: Row) -> None:
    start_ns = time.monotonic_ns()
    world.cameras.restart(UNKNOWN)
    check_logged(world, row, start_ns)
    silent_ns = time.monotonic_ns()
    time.sleep(0.5)
    assert not world.recorder.since(silent_ns)
    world.cameras.restart(NORMAL)
    check_resumed(world, row)


def test_camera_restarts_with_another_size(tmp_path: Path, row: Row) -> None:
    """Both readouts of a sensor that the table of cameras knows, binned and full."""
    model = write_tiny_driving(tmp_path / "large.pkl", (2688, 1520), name="primary")
    with running_world(tmp_path, model=model) as world:
        world.vehicle.changes["deviceState"] = {"deviceType": "tizi"}
        world.vehicle.changes["roadCameraState"] = {"sensor": "os04c10"}
        world.cameras.slots = 3
        for size in ((1344, 760), (2688, 1520), (1344, 760)):
            start_ns = time.monotonic_ns()
            world.cameras.restart(nv12_format(*size))
            check_resumed(world, row, start_ns)
        check_logged(world, row, 0)
        assert world.service.life.code is None


def test_camera_restarts_too_large(world: World, row: Row) -> None:
    start_ns = time.monotonic_ns()
    world.cameras.restart(TOO_LARGE)
    check_logged(world, row, start_ns)
    silent_ns = time.monotonic_ns()
    # The status is told once a second.
    time.sleep(2.0)
    assert not world.recorder.since(silent_ns)
    told = [status.text for status in world.service.statuses(silent_ns)]
    assert told
    assert all(text.startswith("frames not used: ") for text in told)
    world.cameras.restart(NORMAL)
    check_resumed(world, row)


def test_camera_process_is_killed(world: World, row: Row) -> None:
    world.cameras.close_rings()
    other = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.camera_process", world.cameras.server],
        cwd=ROOT,
        stdin=subprocess.PIPE,
    )
    with other:
        try:
            world.wait_valid(timeout_s=15.0)
            # That frames were missing meanwhile is another outage.
            time.sleep(LOG_PAUSE_S)
            start_ns = time.monotonic_ns()
            other.kill()
            other.wait()
            check_logged(world, row, start_ns)
            silent_ns = time.monotonic_ns()
            time.sleep(0.5)
            assert not world.recorder.since(silent_ns)
        finally:
            other.kill()
    world.cameras.reset()
    check_resumed(world, row)


def test_frame_is_overwritten_while_it_is_used(world: World, row: Row) -> None:
    start_ns = time.monotonic_ns()
    assert slow_run(world, ms=40)
    world.cameras.overwrite_newest()
    world.wait_message(lambda m: not m.valid, start_ns)
    check_logged(world, row, start_ns)
    check_resumed(world, row, start_ns + 100_000_000)


def test_record_of_a_frame_is_damaged(world: World, row: Row) -> None:
    """Sequence, id and stamps of the newest record, again and again."""
    start_ns = time.monotonic_ns()
    for value in (0, 7, 1 << 40, (1 << 64) - 1):
        for _ in range(5):
            record = world.cameras.record_word("road")
            world.cameras.write_words("road", record, [value] * 4)
            time.sleep(0.02)
    check_resumed(world, row)
    ids = [m.frame_id for m in world.recorder.since(start_ns)]
    assert max(ids) < 1 << 32
    check_logged(world, row, start_ns)


def test_head_of_a_ring_is_damaged(world: World, row: Row) -> None:
    """The count of frames jumps ahead, then far back, as nothing but a broken writer does."""
    start_ns = time.monotonic_ns()
    for head in (1 << 40, 3):
        start_ns = time.monotonic_ns()
        world.cameras.write_words("road", 8, [head])
        check_resumed(world, row, start_ns)
    check_logged(world, row, start_ns)


def test_header_of_a_ring_is_damaged(world: World, row: Row) -> None:
    """What runs has read it; who comes later sees a ring that cannot be, and waits for another."""
    start_ns = time.monotonic_ns()
    world.cameras.write_words("road", 0, [0] * 8)
    check_resumed(world, row, start_ns)
    world.cameras.restart()
    check_resumed(world, row)
    check_logged(world, row, start_ns)


def test_camera_comes_back_with_rings_of_another_version(world: World, row: Row) -> None:
    """As after an update of one of both: the ring lies there, and its reader cannot read it."""
    start_ns = time.monotonic_ns()
    world.cameras.close_rings()
    place = DIRECTORY / f"frames_{world.cameras.server}_road"
    other = FrameRingWriter(f"{world.cameras.server}_new", "road", NORMAL)
    try:
        assert other._mapping is not None
        other._mapping.words[1] = 99
        # It appears whole, as a camera process would make it.
        (DIRECTORY / f"frames_{world.cameras.server}_new_road").rename(place)
        time.sleep(0.3)
        silent_ns = time.monotonic_ns()
        check_logged(world, row, start_ns, 5.0)
        check_meanwhile(world, row, silent_ns)
    finally:
        other.close()
        place.unlink(missing_ok=True)
    world.cameras.reset()
    check_resumed(world, row)


@pytest.mark.parametrize("offset_s", [3600, -600])
def test_stamps_of_frames_jump(world: World, row: Row, offset_s: int) -> None:
    wait_quiet(world)
    start_ns = time.monotonic_ns()
    world.cameras.offset_ns = offset_s * 1_000_000_000
    check_resumed(world, row, start_ns)
    check_logged(world, row, start_ns)
    check_meanwhile(world, row, start_ns)
    back_ns = time.monotonic_ns()
    world.cameras.offset_ns = 0
    check_resumed(world, row, back_ns)
    check_meanwhile(world, row, back_ns)


def test_frames_are_missing(world: World, row: Row) -> None:
    wait_quiet(world)
    start_ns = time.monotonic_ns()
    world.cameras.next_id += 7
    check_logged(world, row, start_ns)
    line = world.service.lines(row.logged[0], start_ns)[0]
    check_resumed(world, row, line.arrived_ns)
    check_meanwhile(world, row, start_ns)
    # The frame that comes after those that are missing goes into the histories only.
    found = re.search(r"before frame (\d+); model not run", line.text)
    assert found is not None, line.text
    assert int(found[1]) not in {m.frame_id for m in world.recorder.since(start_ns)}


def test_frame_ids_go_back(world: World, row: Row) -> None:
    wait_quiet(world)
    start_ns = time.monotonic_ns()
    world.cameras.next_id -= 20
    check_resumed(world, row, start_ns)
    check_logged(world, row, start_ns)
    check_meanwhile(world, row, start_ns)
    assert not first_back(world, start_ns).valid
