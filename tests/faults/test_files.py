"""Rows about files: models damaged or replaced, caches gone, disks full, a log directory gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.checks import check_logged, check_resumed, check_undisturbed
from tests.faults.service import Setup
from tests.faults.table import Row
from tests.faults.test_device import WITH_FALLBACK, is_fallback
from tests.faults.world import World, running_world

pytestmark = [pytest.mark.opencl, pytest.mark.alone, pytest.mark.slow]
FULL = Path("/dev/full")


def _flip(path: Path, place: float) -> None:
    """Change a byte of a file, where it lies."""
    data = path.read_bytes()
    at = int(len(data) * place)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 0x40]))


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", ["flipped", "truncated", "gone", "junk"])
def test_model_file_is_damaged_at_start(tmp_path: Path, row: Row, damage: str) -> None:
    with running_world(tmp_path, restarts=False) as world:
        world.wait_valid()
        world.service.signal(15, asked=True)
        assert world.service.wait_exit() == 0
        model = tmp_path / "primary.pkl"
        kept = model.read_bytes()
        if damage == "flipped":
            _flip(model, 0.7)
        elif damage == "truncated":
            _truncate(model)
        elif damage == "gone":
            model.unlink()
        else:
            model.write_bytes(b"\x80\x04junk" * 1000)
        start_ns = time.monotonic_ns()
        world.service.start()
        assert world.service.wait_exit() == row.exit_code
        check_logged(world, row, start_ns)
        assert not world.service.lines("Traceback")
        model.write_bytes(kept)
        world.service.start()
        check_resumed(world, row, world.service.life.started_ns)


def test_primary_cannot_be_loaded(tmp_path: Path, row: Row) -> None:
    """The fallback model drives from the first frame on."""
    (tmp_path / "state").mkdir()

    def change(setup: Setup) -> Setup:
        _flip(tmp_path / "primary.pkl", 0.7)
        return setup

    with running_world(
        tmp_path, more=WITH_FALLBACK.format(directory=tmp_path), change=change
    ) as world:
        assert world.wait_valid(world.service.life.started_ns, 15.0) <= row.within_s
        check_logged(world, row, 0)
        assert all(is_fallback(message.speed_mps) for message in world.recorder.messages)


@pytest.mark.parametrize("damage", ["overwritten", "truncated", "removed", "replaced"])
def test_model_file_changes_while_it_runs(world: World, row: Row, damage: str) -> None:
    """What runs has a copy of its own."""
    model = world.directory / "primary.pkl"
    kept = model.read_bytes()
    start_ns = time.monotonic_ns()
    before = world.recorder.messages[-1].speed_mps
    try:
        if damage == "overwritten":
            with model.open("r+b") as file:
                file.write(b"\0" * len(kept))
        elif damage == "truncated":
            os.truncate(model, 0)
        elif damage == "removed":
            model.unlink()
        else:
            (world.directory / "new.pkl").write_bytes((world.directory / "safe.pkl").read_bytes())
            (world.directory / "new.pkl").replace(model)
        time.sleep(1.0)
        check_undisturbed(world, start_ns)
        check_logged(world, row, start_ns)
        assert abs(world.recorder.messages[-1].speed_mps - before) < 0.5
    finally:
        model.write_bytes(kept)
    check_resumed(world, row, time.monotonic_ns())


@contextmanager
def world_with_cache(tmp_path: Path) -> Iterator[World]:
    """A daemon with a cache directory of its own, restarted as systemd would."""

    def change(setup: Setup) -> Setup:
        return replace(setup, environment={"MODELD_CACHE_DIR": str(tmp_path / "cache")})

    (tmp_path / "cache").mkdir()
    with running_world(tmp_path, restarts=True, change=change) as world:
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
        check_resumed(world, row, time.monotonic_ns())
        check_logged(world, row, killed_ns)


def test_cache_directory_cannot_be_written(tmp_path: Path, row: Row) -> None:
    with world_with_cache(tmp_path) as world:
        shutil.rmtree(tmp_path / "cache")
        (tmp_path / "cache").write_text("in the way")
        start_ns = time.monotonic_ns()
        world.service.signal(9)
        check_resumed(world, row, time.monotonic_ns())
        check_logged(world, row, start_ns)


def test_disk_of_the_cache_is_full(tmp_path: Path, row: Row) -> None:
    def change(setup: Setup) -> Setup:
        return replace(setup, environment={"MODELD_CACHE_DIR": str(tmp_path / "cache")})

    with full_directory(tmp_path / "cache"), running_world(tmp_path, change=change) as world:
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
        check_resumed(world, row, time.monotonic_ns())


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
    def change(setup: Setup) -> Setup:
        return replace(setup, stderr=FULL)

    with running_world(tmp_path, change=change) as world:
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

    def change(setup: Setup) -> Setup:
        return replace(setup, stderr=log)

    with running_world(tmp_path, change=change) as world:
        world.wait_valid()
        shutil.rmtree(tmp_path / "log")
        start_ns = time.monotonic_ns()
        time.sleep(0.3)
        check_undisturbed(world, start_ns)
        world.cameras.next_id += 5
        check_resumed(world, row, time.monotonic_ns())
        assert world.service.life.code is None
