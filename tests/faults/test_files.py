"""Rows about files: models damaged or replaced, caches gone, disks full, a log directory gone."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.checks import (
    check_fallback_alone,
    check_logged,
    check_resumed,
    check_undisturbed,
)
from tests.faults.table import Row
from tests.faults.world import World, running_world

pytestmark = [pytest.mark.opencl, pytest.mark.alone, pytest.mark.slow]
FULL = Path("/dev/full")


def flip(path: Path) -> None:
    """Change a byte of a file, where it lies."""
    data = path.read_bytes()
    at = int(len(data) * 0.7)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 0x40]))


def overwrite(path: Path) -> None:
    """Fill a file with zeros, where it lies."""
    with path.open("r+b") as file:
        file.write(b"\0" * path.stat().st_size)


def replace(path: Path) -> None:
    """Put a copy of the fallback model in the place of a file."""
    shutil.copy(path.with_name("safe.pkl"), path.with_name("new.pkl"))
    path.with_name("new.pkl").replace(path)


Damage = Callable[[Path], object]


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda path: os.truncate(path, path.stat().st_size // 2),
        Path.unlink,
        lambda path: path.write_bytes(b"\x80\x04junk" * 1000),
    ],
    ids=["flipped", "truncated", "gone", "junk"],
)
def test_model_file_is_damaged_at_start(tmp_path: Path, row: Row, damage: Damage) -> None:
    with running_world(tmp_path) as world:
        world.wait_valid()
        world.service.signal(15, asked=True)
        assert world.service.wait_exit() == 0
        model = tmp_path / "primary.pkl"
        kept = model.read_bytes()
        damage(model)
        start_ns = time.monotonic_ns()
        world.service.start()
        assert world.service.wait_exit() == row.exit_code
        check_logged(world, row, start_ns)
        assert not world.service.lines("Traceback")
        model.write_bytes(kept)
        world.service.start()
        check_resumed(world, row, world.service.life.started_ns)


def test_primary_cannot_be_loaded(tmp_path: Path, row: Row) -> None:
    def damage(directory: Path) -> None:
        flip(directory / "primary.pkl")

    with running_world(tmp_path, fallback=True, before=damage) as world:
        check_fallback_alone(world, row)


@pytest.mark.parametrize(
    "damage",
    [overwrite, lambda path: os.truncate(path, 0), Path.unlink, replace],
    ids=["overwritten", "truncated", "removed", "replaced"],
)
def test_model_file_changes_while_it_runs(world: World, row: Row, damage: Damage) -> None:
    """What runs has a copy of its own."""
    model = world.directory / "primary.pkl"
    kept = model.read_bytes()
    start_ns = time.monotonic_ns()
    before = world.recorder.messages[-1].speed_mps
    try:
        damage(model)
        time.sleep(1.0)
        check_undisturbed(world, start_ns)
        check_logged(world, row, start_ns)
        assert abs(world.recorder.messages[-1].speed_mps - before) < 0.5
    finally:
        model.write_bytes(kept)
    check_resumed(world, row)


def cache_of(directory: Path) -> dict[str, str]:
    return {"MODELD_CACHE_DIR": str(directory / "cache")}


@contextmanager
def world_with_cache(tmp_path: Path) -> Iterator[World]:
    """A daemon with a cache directory of its own, restarted as systemd would."""
    (tmp_path / "cache").mkdir()
    with running_world(tmp_path, restarts=True, environment=cache_of(tmp_path)) as world:
        world.wait_valid(timeout_s=20.0)
        yield world


def test_cache_directory_is_removed_while_it_runs(tmp_path: Path, row: Row) -> None:
    with world_with_cache(tmp_path) as world:
        start_ns = time.monotonic_ns()
        shutil.rmtree(tmp_path / "cache")
        time.sleep(1.0)
        check_undisturbed(world, start_ns)
        # The next process builds its kernels again, and keeps them.
        killed_ns = time.monotonic_ns()
        world.service.signal(9)
        check_resumed(world, row)
        check_logged(world, row, killed_ns)


def test_cache_directory_cannot_be_written(tmp_path: Path, row: Row) -> None:
    with world_with_cache(tmp_path) as world:
        shutil.rmtree(tmp_path / "cache")
        (tmp_path / "cache").write_text("in the way")
        start_ns = time.monotonic_ns()
        world.service.signal(9)
        check_resumed(world, row)
        check_logged(world, row, start_ns)


def test_disk_of_the_cache_is_full(tmp_path: Path, row: Row) -> None:
    with (
        full_directory(tmp_path / "cache"),
        running_world(tmp_path, environment=cache_of(tmp_path)) as world,
    ):
        check_resumed(world, row, world.service.life.started_ns)
        check_logged(world, row, 0)


def test_disk_of_the_metrics_is_full(tmp_path: Path, row: Row) -> None:
    """`/dev/full` takes nothing, as a full disk does."""
    more = f'metrics_file = "{tmp_path}/metrics/modeld.prom"'
    with full_directory(tmp_path / "metrics"), running_world(tmp_path, more=more) as world:
        world.wait_valid()
        start_ns = time.monotonic_ns()
        check_logged(world, row, 0)
        time.sleep(1.5)
        check_undisturbed(world, start_ns)
        check_resumed(world, row)


@contextmanager
def full_directory(path: Path) -> Iterator[None]:
    """A directory in which nothing can be written: a full tmpfs, or one that is no directory."""
    path.mkdir()
    mounted = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=4", "tmpfs", path],  # noqa: S607 -- by PATH
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )
    if mounted:
        (path / "full").write_bytes(b"\0" * 4096)
    else:
        path.rmdir()
        path.symlink_to(FULL)
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["umount", "-l", path], check=False)  # noqa: S607 -- as above


def test_log_goes_to_a_full_disk(tmp_path: Path, row: Row) -> None:
    with running_world(tmp_path, stderr=FULL) as world:
        world.wait_valid()
        start_ns = time.monotonic_ns()
        world.cameras.next_id += 5
        time.sleep(0.5)
        world.cameras.restart()
        check_resumed(world, row, start_ns)
        time.sleep(0.5)
        assert world.service.life.code is None


def test_log_directory_is_removed(tmp_path: Path, row: Row) -> None:
    """The descriptor stays, the file is gone: lines go nowhere, and nobody waits for them."""
    (tmp_path / "log").mkdir()
    log = tmp_path / "log/modeld.log"
    log.touch()
    with running_world(tmp_path, stderr=log) as world:
        world.wait_valid()
        shutil.rmtree(tmp_path / "log")
        start_ns = time.monotonic_ns()
        time.sleep(0.3)
        check_undisturbed(world, start_ns)
        world.cameras.next_id += 5
        check_resumed(world, row)
        assert world.service.life.code is None
