"""Built programs come from the artifact or the cache where they fit, and from source otherwise."""

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.files.cache import EntryStore
from runtime.format.artifact import from_memory
from runtime.opencl.device import choose_device
from runtime.opencl.program_cache import ProgramCache, cache_key
from runtime.run.executor import Program, build_binaries, load_program
from tests.runtime import tiny
from tests.runtime.children import DAMAGE, LinkCounter, run, start

pytestmark = pytest.mark.opencl

EXPECTED = 2 * tiny.inputs()["x"] + tiny.WEIGHT


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "programs"


def load_and_run(path: Path) -> int:
    """Return how many programs were compiled, after checking that they compute the right thing."""
    with load_program(path) as program:
        np.testing.assert_array_equal(program.run(tiny.inputs())["y"], EXPECTED)
        return program.stats.built_from_source


ENTRY_DAMAGE: dict[str, Callable[[Path], object]] = {
    **{kind: DAMAGE[kind] for kind in DAMAGE if kind != "unreadable"},
    "flipped": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"),
    "magic": lambda path: path.write_bytes(b"M" + path.read_bytes()[1:]),
    "foreign": lambda path: path.write_bytes((path.parent / "other").read_bytes()),
}


@pytest.mark.parametrize("kind", ENTRY_DAMAGE)
def test_damaged_entry(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    store = EntryStore(tmp_path / "store", "thing")
    for key in ("key", "other"):
        store.put(key, b"payload of " + key.encode())
    assert store.get("key") == b"payload of key"
    ENTRY_DAMAGE[kind](tmp_path / "store" / "key")
    assert store.get("key") is None
    assert [str(tmp_path / "store" / "key") in text for text in caplog.messages] == [True]
    assert "cached thing" in caplog.text
    assert "making it again" in caplog.text
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["other"]
    assert store.get("key") is None
    assert len(caplog.messages) == 1


def test_the_oldest_used_entries_go_beyond_the_bounds(tmp_path: Path) -> None:
    size = 8 + 32 + 10
    store = EntryStore(tmp_path, "thing", max_bytes=3 * size, max_files=3)
    for number, key in enumerate("abc"):
        store.put(key, bytes(10))
        os.utime(tmp_path / key, (number, number))
    assert store.get("a") == bytes(10)  # used now
    store.put("d", bytes(10))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c", "d"]
    few = EntryStore(tmp_path, "thing", max_files=2)
    few.put("e", b"")
    assert (tmp_path / "e").exists()
    assert len(list(tmp_path.iterdir())) == 2
    before = sorted(tmp_path.iterdir())
    store.put("large", bytes(3 * size - 40 + 1))
    assert sorted(tmp_path.iterdir()) == before
    store.put("large", bytes(3 * size - 40))
    assert [path.name for path in tmp_path.iterdir()] == ["large"]
    usual = EntryStore(tmp_path, "thing")
    assert (usual.max_bytes, usual.max_files) == (1 << 30, 4096)
    (tmp_path / ".new-x").touch()
    for age_s, there in ((3599, True), (3601, False)):
        newest = (tmp_path / "large").stat().st_mtime
        os.utime(tmp_path / ".new-x", (newest - age_s, newest - age_s))
        store.put("large", bytes(3 * size - 40))
        os.utime(tmp_path / "large", (newest, newest))
        assert (tmp_path / ".new-x").exists() is there


@pytest.mark.parametrize(("mode", "is_used"), [(0o755, True), (0o775, False), (0o757, False)])
def test_a_directory_that_others_can_write_to_is_not_used(
    tmp_path: Path, mode: int, is_used: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = EntryStore(tmp_path / f"{mode:o}", "thing")
    store.put("key", b"payload")
    assert store.directory.stat().st_mode & 0o777 == 0o700
    store.directory.chmod(mode)
    assert (store.get("key") == b"payload") is is_used
    store.put("second", b"")
    assert (store.directory / "second").exists() is is_used
    assert len(caplog.messages) == (0 if is_used else 1)


def test_writers_in_one_process_leave_whole_entries_only(tmp_path: Path) -> None:
    store = EntryStore(tmp_path, "thing")
    payload = bytes(range(256)) * 100

    def write(turn: int) -> bool:
        store.put(f"key{turn % 4}", payload)
        return store.get(f"key{turn % 4}") == payload

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(write, range(80)))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"key{n}" for n in range(4)]


def test_identical_programs_are_built_once_and_none_at_the_second_load(
    tmp_path: Path, directory: Path
) -> None:
    raw = tiny.manifest()
    path = tiny.write(tmp_path / "a.pkl", programs=[*raw["programs"], raw["programs"][0]])
    assert load_and_run(path) == 2
    assert len(list(directory.iterdir())) == 2
    assert load_and_run(path) == 0


def test_damaged_entry_is_built_again_and_replaced(
    artifact: Path, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_and_run(artifact)
    entry = sorted(directory.iterdir())[0]
    good = entry.read_bytes()
    middle = len(good) // 2
    entry.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
    assert load_and_run(artifact) == 1
    assert "the cached program is damaged; making it again" in caplog.text
    assert load_and_run(artifact) == 0


def test_cache_that_cannot_be_written_only_warns(
    artifact: Path, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory.parent.mkdir()
    directory.touch()  # a file where the directory should be
    assert load_and_run(artifact) == 2
    assert "cannot cache a program" in caplog.text


def test_key_depends_on_every_part() -> None:
    info = choose_device().info
    keys = [
        *(("source", "options"), ("source2", "options"), ("source", "options2")),
        ("sourceo", "ptions"),
    ]
    found = {cache_key(*key, info) for key in keys}
    others = (replace(info, name="o"), replace(info, driver="o"), replace(info, platform="o"))
    found |= {cache_key("source", "options", other) for other in others}
    assert len(found) == 7
    assert cache_key("source", "options", info) in found


def for_this_driver(binaries: list[bytes], **changes: str) -> dict[str, Any]:
    raw, info = tiny.manifest(), choose_device().info
    for program, binary in zip(raw["programs"], binaries, strict=True):
        program["binary"] = binary
    raw["target"].update({"device": info.name, "driver": info.driver, **changes})
    return {"programs": raw["programs"], "target": raw["target"]}


def test_binary_of_this_driver_is_used(tmp_path: Path, directory: Path) -> None:
    binaries = build_binaries(tiny.manifest(), tiny.data_blob())
    assert load_and_run(tiny.write(tmp_path / "a.pkl", **for_this_driver(binaries))) == 0
    assert not directory.exists()


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize("other", ["driver", "device"])
def test_binary_of_another_driver_is_not_touched_and_that_is_said(
    other: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "runtime")
    changes = for_this_driver([b"made for something else"] * 2, **{other: "1.0 of long ago"})
    path = tiny.write(tmp_path / "a.pkl", **changes)
    assert load_and_run(path) == 2
    for part in ("tiny: compiled on", "1.0 of long ago", "built from source"):
        assert part in caplog.text
    assert "refuses it" not in caplog.text
    assert load_and_run(path) == 0


def test_binary_the_driver_refuses_is_built_from_source(
    tmp_path: Path, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "runtime")
    changes = for_this_driver([b"no binary at all, whatever the manifest says", b""])
    assert load_and_run(tiny.write(tmp_path / "a.pkl", **changes)) == 2
    assert "the artifact's binary: the driver refuses it" in caplog.text
    assert len(list(directory.iterdir())) == 2


def test_programs_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.opencl.program_cache._MAX_IN_MEMORY", 1)
    device = choose_device()
    cache = ProgramCache(device)
    with Program(from_memory(tiny.manifest(), tiny.data_blob()), device, cache) as program:
        np.testing.assert_array_equal(program.run(tiny.inputs())["y"], EXPECTED)
    assert len(cache._built) == 1


LOAD = """
import sys
from runtime import load_program
from tests.runtime import tiny
print(*load_program(sys.argv[1]).run(tiny.inputs())["y"])
"""


@pytest.mark.slow
def test_cached_programs_leave_nothing_to_compile_at_the_first_launch(
    artifact: Path, directory: Path, tmp_path: Path
) -> None:
    if not choose_device().info.is_pocl:
        pytest.skip("counts PoCL's linker runs")
    links = LinkCounter(tmp_path / "shim")
    code = LOAD.replace("sys.argv[1]", repr(str(artifact)))
    for pocl in ("cold", "warm"):  # of PoCL's own cache there is nothing either time
        run(code, directory.parent, POCL_CACHE_DIR=str(tmp_path / pocl), PATH=links.path)
        assert links.take() >= 5 if pocl == "cold" else links.take() == 0
        assert list((tmp_path / pocl).iterdir()) == []  # PoCL's directory went with its process


@pytest.mark.slow
def test_writers_of_the_same_entries_do_not_disturb_each_other(
    artifact: Path, directory: Path
) -> None:
    writers = [start(LOAD, directory.parent, artifact) for _ in range(4)]
    for writer in writers:
        out, err = writer.communicate(timeout=240)
        assert (writer.returncode, err) == (0, "")
        assert out.split() == [str(value) for value in EXPECTED]
    assert len(list(directory.iterdir())) == 2  # and no temporary file
    assert load_and_run(artifact) == 0
