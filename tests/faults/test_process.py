"""Rows about the process: signals, stops, kills, processors, memory, descriptors, its log."""

import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.faults.cameras import NORMAL
from tests.faults.cgroup import memory_group
from tests.faults.checks import (
    check_logged,
    check_meanwhile,
    check_resumed,
    check_undisturbed,
    wait_quiet,
)
from tests.faults.disturb import busy_processes, no_more_descriptors, no_more_memory, slow_run
from tests.faults.faulty_opencl import Mode
from tests.faults.service import command
from tests.faults.table import Row
from tests.faults.world import World, is_fallback, running_world, world_with_fallback
from tests.support.selection import quick_cases

pytestmark = [pytest.mark.opencl, pytest.mark.alone]


@pytest.mark.slow
def test_process_is_stopped_for_a_moment(tmp_path: Path, row: Row) -> None:
    """In the middle of a run: the time does not count, so that the model is kept."""
    with world_with_fallback(tmp_path) as world:
        assert slow_run(world, ms=60)
        world.service.signal(signal.SIGSTOP)
        stopped_ns = time.monotonic_ns()
        time.sleep(0.1)
        silent_ns = time.monotonic_ns()
        time.sleep(0.6)
        check_meanwhile(world, row, silent_ns)
        world.service.signal(signal.SIGCONT)
        check_resumed(world, row)
        check_logged(world, row, stopped_ns)
        time.sleep(0.5)
        assert not any(is_fallback(message.speed_mps) for message in world.recorder.messages)
        assert not world.service.lines("switching to the fallback model")
        assert len(world.service.lives) == 1
        assert world.service.life.code is None


@pytest.mark.slow
def test_process_is_stopped_for_long(tmp_path: Path, row: Row) -> None:
    with running_world(tmp_path, restarts=True) as world:
        world.wait_valid()
        world.service.wait_ready()
        stopped = world.service.life
        world.service.signal(signal.SIGSTOP)
        world.service.wait(lambda: stopped.ended_ns, 10.0, "no end of the process")
        assert stopped.by_watchdog
        assert stopped.code == row.exit_code
        check_resumed(world, row, stopped.ended_ns)
        check_logged(world, row, stopped.ended_ns)


@pytest.mark.parametrize("times", quick_cases([1, 3], 1))
def test_process_is_killed(tmp_path: Path, row: Row, times: int) -> None:
    with running_world(tmp_path, restarts=True) as world:
        world.wait_valid()
        for _ in range(times):
            killed = world.service.life
            world.service.signal(signal.SIGKILL)
            ended_ns = time.monotonic_ns()
            check_resumed(world, row, ended_ns)
            check_logged(world, row, ended_ns)
            assert killed.code == row.exit_code


@pytest.mark.slow
def test_process_is_killed_while_the_extra_camera_is_lost(tmp_path: Path, row: Row) -> None:
    """The new process has never seen that camera, and is not to believe that there is none."""
    with running_world(tmp_path, restarts=True) as world:
        world.wait_valid()
        world.cameras.close_rings("wideRoad")
        world.wait_message(lambda m: not m.valid, time.monotonic_ns())
        killed, start_ns = world.service.life, time.monotonic_ns()
        world.service.signal(signal.SIGKILL)
        check_logged(world, row, start_ns, timeout_s=15.0)
        assert killed.code == row.exit_code
        first = world.wait_message(lambda m: not m.valid, killed.ended_ns)
        assert first.frame_id_extra == first.frame_id
        time.sleep(1.0)
        assert not [m for m in world.recorder.since(killed.ended_ns) if m.valid]
        world.cameras.open({"wideRoad": NORMAL})
        check_resumed(world, row)


@pytest.mark.slow
def test_processors_are_taken(world: World, row: Row) -> None:
    start_ns = time.monotonic_ns()
    with busy_processes(4):
        time.sleep(2.0)
        check_meanwhile(world, row, start_ns)
    check_resumed(world, row)
    check_logged(world, row, start_ns)


@pytest.mark.slow
def test_no_more_memory_can_be_had(world: World, row: Row) -> None:
    """The address space may not grow: what runs needs no more than it has."""
    start_ns = time.monotonic_ns()
    with no_more_memory(world):
        time.sleep(2.0)
        check_undisturbed(world, start_ns)
        check_logged(world, row, start_ns)
    check_resumed(world, row)


@pytest.mark.slow
def test_neighbour_takes_the_memory_of_the_group(world: World, row: Row) -> None:
    """Of the processes that share a limit the one that grows is killed, and this one goes on."""
    with memory_group(world.service.pid, spare_mib=64) as join:
        start_ns = time.monotonic_ns()
        code = (
            "import time\nheld = []\nwhile True: held.append(bytearray(1 << 22)); time.sleep(0.01)"
        )
        neighbour = subprocess.Popen(command(join, [sys.executable, "-c", code]))
        assert neighbour.wait(20) != 0
        time.sleep(0.5)
        check_undisturbed(world, start_ns, longest_gap_s=0.5)
        check_logged(world, row, start_ns)
    check_resumed(world, row)


def check_refused(directory: Path, row: Row, limits: str) -> None:
    """A process that may have too little ends, and says so."""
    with running_world(directory, limits=limits) as world:
        assert world.service.wait_exit() == row.exit_code
        check_logged(world, row, 0)
        assert not world.service.lines("Traceback")


@pytest.mark.slow
def test_too_little_memory_to_start(tmp_path: Path, row: Row) -> None:
    check_refused(tmp_path, row, f"ulimit -v {400 << 10}")


@pytest.mark.slow
def test_too_few_descriptors_to_start(tmp_path: Path, row: Row) -> None:
    check_refused(tmp_path, row, "ulimit -n 48")


@pytest.mark.slow
def test_no_more_descriptors_can_be_had(world: World, row: Row) -> None:
    """Nor a camera that comes back, until the limit is another one."""
    with no_more_descriptors(world):
        start_ns = time.monotonic_ns()
        time.sleep(1.0)
        check_undisturbed(world, start_ns)
        restart_ns = time.monotonic_ns()
        world.cameras.restart()
        time.sleep(0.3)
        silent_ns = time.monotonic_ns()
        check_logged(world, row, restart_ns, 5.0)
        check_meanwhile(world, row, silent_ns)
    check_resumed(world, row)


@pytest.mark.slow
def test_log_is_not_read(tmp_path: Path, row: Row) -> None:
    """The pipe of stderr is full: each camera fault logs more."""
    with running_world(tmp_path, read_log=False) as world:
        world.wait_valid()
        for _ in range(40):
            world.cameras.next_id += 5
            time.sleep(0.02)
        start_ns = time.monotonic_ns()
        check_resumed(world, row, start_ns)
        time.sleep(1.0)
        check_undisturbed(world, start_ns + 500_000_000)
        assert world.service.life.code is None


@pytest.mark.slow
@pytest.mark.parametrize("hours", [24, -24])
def test_wall_clock_jumps(world: World, row: Row, hours: int) -> None:
    """A day ahead or back, as when a device without a battery finds out the time."""
    wait_quiet(world)
    start_ns = time.monotonic_ns()
    world.control.order(Mode.CLOCK, ms=hours * 3_600_000)
    time.sleep(2.0)
    check_undisturbed(world, start_ns)
    check_logged(world, row, start_ns)
    # A line has the time, by which it is seen that there is another one.
    jumped_ns = time.monotonic_ns()
    world.cameras.next_id -= 20
    line = world.service.wait_line("ids go back from", jumped_ns)
    off = datetime.fromisoformat(line.text.split()[0]) - datetime.now(UTC)
    assert round(off.total_seconds() / 3600) == hours
    world.control.clear()
    check_resumed(world, row)


@pytest.mark.slow
def test_loop_makes_no_progress(tmp_path: Path, row: Row) -> None:
    """Frames come, and nothing is published: no ping, and the watchdog ends the process."""
    with running_world(tmp_path, faulty=True, restarts=True) as world:
        world.wait_valid()
        world.service.wait_ready()
        stuck = world.service.life
        world.control.order(Mode.STUCK)
        start_ns = time.monotonic_ns()
        world.service.wait(lambda: stuck.ended_ns, 10.0, "no end of the process")
        world.control.clear()
        assert stuck.by_watchdog, world.service.text()
        assert stuck.code == row.exit_code
        # A second without progress, and what a ping takes until it is heard.
        pings = world.service.pings(start_ns + 1_500_000_000)
        assert not [ping for ping in pings if ping.arrived_ns < stuck.ended_ns]
        check_meanwhile(world, row, start_ns + 100_000_000, stuck.ended_ns)
        check_resumed(world, row, stuck.ended_ns)
        check_logged(world, row, start_ns)
