"""Built programs come from the artifact or the cache where they fit, and from source otherwise."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from runtime.artifact import from_memory
from runtime.device import DeviceInfo, choose_device
from runtime.executor import Program, build_binaries, load_program
from runtime.program_cache import ProgramCache, cache_key
from tests.runtime import tiny

pytestmark = pytest.mark.opencl

EXPECTED = 2 * tiny.inputs()["x"] + tiny.WEIGHT


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in use."""
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "programs"


def load_and_run(path: Path) -> int:
    """Return how many programs were compiled, after checking that they compute the right thing."""
    with load_program(path) as program:
        np.testing.assert_array_equal(program.run(tiny.inputs())["y"], EXPECTED)
        return program.stats.built_from_source


def test_second_load_compiles_nothing(artifact: Path, directory: Path) -> None:
    assert load_and_run(artifact) == 2
    assert len(list(directory.iterdir())) == 2
    assert load_and_run(artifact) == 0


def test_identical_programs_are_built_once(tmp_path: Path, directory: Path) -> None:
    raw = tiny.manifest()
    path = tiny.write(tmp_path / "a.pkl", programs=[*raw["programs"], raw["programs"][0]])
    assert load_and_run(path) == 2
    assert len(list(directory.iterdir())) == 2


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "foreign"])
def test_damaged_entry_is_built_again_and_replaced(
    artifact: Path, directory: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    load_and_run(artifact)
    entry = sorted(directory.iterdir())[0]
    good = entry.read_bytes()
    middle = len(good) // 2
    bad = {
        "truncate": good[:middle],
        "flip": good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :],
        "empty": b"",
        "foreign": sorted(directory.iterdir())[1].read_bytes(),  # whole, but of another key
    }
    entry.write_bytes(bad[damage])
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
    fields = {name: getattr(info, name) for name in DeviceInfo.__slots__}
    keys = {
        cache_key("source", "options", info),
        cache_key("source2", "options", info),
        cache_key("source", "options2", info),
        cache_key("sourceo", "ptions", info),
        cache_key("source", "options", DeviceInfo(**{**fields, "name": "other"})),
        cache_key("source", "options", DeviceInfo(**{**fields, "driver": "other"})),
        cache_key("source", "options", DeviceInfo(**{**fields, "platform": "other"})),
    }
    assert len(keys) == 7
    assert cache_key("source", "options", info) in keys


def test_binary_of_this_driver_is_used(tmp_path: Path, directory: Path) -> None:
    info = choose_device().info
    raw = tiny.manifest()
    binaries = build_binaries(raw, tiny.data_blob())
    programs = [
        {**program, "binary": binary}
        for program, binary in zip(raw["programs"], binaries, strict=True)
    ]
    target = {"name": "cpu", "device": info.name, "driver": info.driver, "options": ""}
    path = tiny.write(tmp_path / "a.pkl", programs=programs, target=target)
    assert load_and_run(path) == 0
    assert not directory.exists()


@pytest.mark.usefixtures("directory")
def test_binary_of_another_driver_is_not_touched_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "runtime")
    raw = tiny.manifest()
    for program in raw["programs"]:
        program["binary"] = b"made for something else"
    info = choose_device().info
    raw["target"].update(device=info.name, driver="1.0 of long ago")
    path = tiny.write(tmp_path / "a.pkl", programs=raw["programs"], target=raw["target"])
    assert load_and_run(path) == 2
    assert "tiny: compiled on" in caplog.text
    assert "1.0 of long ago" in caplog.text
    assert "built from source" in caplog.text
    assert load_and_run(path) == 0


def test_binary_the_driver_refuses_is_built_from_source(
    tmp_path: Path, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "runtime")
    raw = tiny.manifest()
    info = choose_device().info
    raw["target"].update(device=info.name, driver=info.driver)
    raw["programs"][0]["binary"] = b"no binary at all, whatever the manifest says"
    path = tiny.write(tmp_path / "a.pkl", programs=raw["programs"], target=raw["target"])
    assert load_and_run(path) == 2
    assert "the artifact's binary: the driver refuses it" in caplog.text
    assert len(list(directory.iterdir())) == 2


def count_links(artifact: Path, modeld_cache: Path, scratch: Path) -> int:
    """Run in a fresh process with PoCL's cache empty; return how many kernels were linked."""
    linker = shutil.which("ld")  # choosing a device has made sure that there is one
    assert linker is not None
    scratch.mkdir()
    shim, log = scratch / "ld", scratch / "links"
    shim.write_text(f'#!/bin/sh\necho >> {log}\nexec {linker} "$@"\n')
    shim.chmod(0o755)
    environment = {
        **os.environ,
        "MODELD_CACHE_DIR": str(modeld_cache),
        "POCL_CACHE_DIR": str(scratch / "pocl"),
        "PATH": f"{scratch}:{os.environ['PATH']}",
    }
    code = (
        "from runtime import load_program\n"
        "from tests.runtime import tiny\n"
        f"load_program({str(artifact)!r}).run(tiny.inputs())\n"
    )
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
    return len(log.read_text(encoding="utf-8")) if log.exists() else 0


def test_cached_programs_leave_nothing_to_compile_at_the_first_launch(
    artifact: Path, directory: Path, tmp_path: Path
) -> None:
    if not choose_device().info.is_pocl:
        pytest.skip("counts PoCL's linker runs")
    assert count_links(artifact, directory.parent, tmp_path / "cold") >= 5
    assert count_links(artifact, directory.parent, tmp_path / "warm") == 0


def test_writers_of_the_same_entries_do_not_disturb_each_other(
    artifact: Path, directory: Path
) -> None:
    code = (
        "import sys\n"
        "from runtime import load_program\n"
        "from tests.runtime import tiny\n"
        "program = load_program(sys.argv[1])\n"
        "print(*program.run(tiny.inputs())['y'])\n"
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(artifact)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for writer in writers:
        out, err = writer.communicate(timeout=120)
        assert (writer.returncode, err) == (0, "")
        assert out.split() == [str(value) for value in EXPECTED]
    assert len(list(directory.iterdir())) == 2  # and no temporary file
    assert load_and_run(artifact) == 0


def test_programs_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.program_cache._MAX_IN_MEMORY", 1)
    device = choose_device()
    cache = ProgramCache(device)
    with Program(from_memory(tiny.manifest(), tiny.data_blob()), device, cache) as program:
        np.testing.assert_array_equal(program.run(tiny.inputs())["y"], EXPECTED)
    assert len(cache._built) == 1
