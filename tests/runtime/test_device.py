"""Discovery and the environment that PoCL needs, tried in fresh processes without either."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.errors import NoDeviceError
from runtime.files.cache import cache_dir
from runtime.opencl.device import _rank, choose_device, list_devices
from runtime.opencl.pocl import ensure_linker
from runtime.run.submission import PRIORITIES, PRIORITY_EXTENSION, open_first_queue
from tests.runtime.children import EXPECTED, RUN, run_bare
from tests.support.selection import quick_cases

pytestmark = pytest.mark.opencl


# A path that does not exist: with an empty directory the loader goes back to its own drivers.
NO_DRIVERS = {"PATH": os.environ["PATH"], "OCL_ICD_VENDORS": "/nowhere/vendors"}
HINTS = {
    "x86_64": "install the `pocl` extra (pip install 'modeld[pocl]') or an OpenCL driver",
    "aarch64": (
        "install an OpenCL driver, such as Debian's PoCL (apt-get install pocl-opencl-icd); "
        "the `pocl` extra has none for aarch64"
    ),
}


@pytest.mark.parametrize("machine", quick_cases(HINTS, "aarch64"))
def test_no_platform_is_exit_code_3_and_names_a_driver(machine: str, tmp_path: Path) -> None:
    there = f"import os\nos.uname = lambda: os.uname_result(('', '', '', '', {machine!r}))\n"
    code, out, err = run_bare(there + RUN, tmp_path / "cache", **NO_DRIVERS)
    assert (code, out) == (3, "")
    assert err == f"no OpenCL device on this machine; {HINTS[machine]}\n"


def test_too_little_memory_for_a_driver_is_said(tmp_path: Path) -> None:
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({8 << 30}, {8 << 30}))\n"
    code, out, err = run_bare(limit + RUN, tmp_path / "cache", **NO_DRIVERS)
    assert (code, out) == (3, "")
    assert "; or allow this process more than 8192 MiB of memory" in err
    assert err.count("\n") == 1


def test_pocl_without_any_linker_is_refused_before_it_aborts(tmp_path: Path) -> None:
    if not choose_device().info.is_pocl:
        pytest.skip("only PoCL needs a linker")
    (tmp_path / "hidden" / "ziglang").mkdir(parents=True)
    (tmp_path / "hidden" / "ziglang" / "__init__.py").touch()  # `ziglang` has no program
    hidden = str(tmp_path / "hidden")
    code, out, err = run_bare(RUN, tmp_path / "cache", PATH="/nonexistent", PYTHONPATH=hidden)
    assert (code, out) == (3, "")
    assert "PoCL needs the linker `ld` on PATH" in err
    assert "pip install ziglang" in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_pocl_links_with_ziglang_where_there_is_no_ld(tmp_path: Path) -> None:
    """A stand-in for the package whose `zig` is the system's linker: the shim is what is tested."""
    linker = shutil.which("ld") if ensure_linker() else None
    if linker is None or not choose_device().info.is_pocl:
        pytest.skip("needs PoCL and a linker to stand in for zig")
    package = tmp_path / "site packages" / "ziglang"  # the space tests the quoting
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    zig, log = package / "zig", tmp_path / "calls"
    zig.write_text(f'#!/bin/sh\necho "$1" >> {log}\nshift\nexec {linker} "$@"\n')
    zig.chmod(0o755)
    for _ in range(2):  # the second process finds the shim already there
        where = {"PATH": "/nonexistent", "PYTHONPATH": str(package.parent)}
        assert run_bare(RUN, tmp_path / "cache", **where) == (0, EXPECTED, "")
    assert set(log.read_text(encoding="utf-8").split()) == {"ld.lld"}


def test_a_shim_of_another_ziglang_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zig = tmp_path / "ziglang/zig"
    zig.parent.mkdir()
    (zig.parent / "__init__.py").touch()
    zig.touch(0o755)
    monkeypatch.delitem(sys.modules, "ziglang", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path / "cache"))
    shim = tmp_path / "cache/linker/ld"
    for _ in range(2):
        monkeypatch.setenv("PATH", "/nonexistent")
        assert ensure_linker()
        assert os.environ["PATH"] == f"{shim.parent}:/nonexistent"
        assert shim.read_text(encoding="utf-8") == f'#!/bin/sh\nexec {zig} ld.lld "$@"\n'
        shim.write_text("#!/bin/sh\nexec /elsewhere/zig ld.lld\n", encoding="utf-8")


@pytest.mark.slow
def test_linker_of_the_default_path_is_found_where_path_is_not_set(tmp_path: Path) -> None:
    if not shutil.which("ld", path=os.defpath) or not choose_device().info.is_pocl:
        pytest.skip("needs PoCL and a system linker")
    # PoCL aborts the process if it finds none.
    assert run_bare(RUN, tmp_path / "cache") == (0, EXPECTED, "")


def test_choose_device_takes_kinds_indices_and_parts_of_names() -> None:
    usable = [info for info in list_devices() if not info.problem]
    first = choose_device()
    assert first.info == usable[0]
    for name in ("auto", first.info.index, first.info.kind, first.info.name[3:12].upper()):
        assert choose_device(name) is first


def test_choose_device_without_a_match_lists_what_there_is() -> None:
    info = list_devices()[0]
    with pytest.raises(NoDeviceError) as error:
        choose_device("no such device")
    assert "no OpenCL device matches 'no such device'; there are: " in str(error.value)
    assert f"{info.index} {info.name}" in str(error.value)


def test_cache_directory_is_private_and_where_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert cache_dir() == tmp_path / "a" / "b"
    assert cache_dir().stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("MODELD_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "modeld"


@pytest.mark.parametrize("why", ["no directory", "full"])
def test_cache_directory_of_no_use_is_replaced_by_a_temporary_one(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """PoCL aborts the process where it cannot write."""
    wanted = tmp_path / "file" / why
    if why == "full":
        free = shutil.disk_usage(tmp_path).free
        monkeypatch.setattr("runtime.files.cache.MIN_FREE_BYTES", free + (1 << 40))
    else:
        (tmp_path / "file").touch()
    monkeypatch.setenv("MODELD_CACHE_DIR", str(wanted))
    directory = cache_dir()
    assert directory.is_dir()
    assert not directory.is_relative_to(tmp_path)
    said = "cannot be written or is nearly full; kernels are built again at every start"
    assert f"{wanted}: {said}" in caplog.text


def test_importing_runtime_loads_no_pyopencl() -> None:
    code = "import runtime, sys; sys.exit('pyopencl' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_gpu_comes_first_then_pocl_then_other_drivers_for_cpus() -> None:
    found = replace(list_devices()[0], platform="Portable Computing Language", kind="cpu")
    ours = replace(found, driver="OpenCL 3.0 PoCL 3.0-rc2  Linux; 3.0-rc2; OpenCL 3.0 PoCL HSTR")
    system = replace(found, driver="OpenCL 3.0 PoCL 3.1+debian  Linux; 3.1; OpenCL 3.0 PoCL HSTR")
    gpu, other = replace(found, kind="gpu", platform="x"), replace(found, platform="rusticl")
    faulty, odd = replace(gpu, problem="no compiler"), replace(found, kind="other", platform="x")
    ordered = [gpu, ours, system, other, odd, faulty]
    shuffled = [other, faulty, system, gpu, odd, ours]
    assert sorted(shuffled, key=_rank) == ordered


# --- queues: a priority is a hint, and where a device does not take it, there is none -------------


@pytest.mark.parametrize(
    ("extensions", "priority", "refusal"),
    [
        ((PRIORITY_EXTENSION,), None, ""),
        *(((), priority, f"does not have {PRIORITY_EXTENSION}$") for priority in PRIORITIES),
        # PoCL does not know the property; a driver that does takes it.
        ((PRIORITY_EXTENSION,), "high", "refuses it: "),
        ((), "highest", "expected one of high, medium, low, found 'highest'"),
    ],
)
def test_a_priority_that_is_not_taken_is_no_error(
    extensions: tuple[str, ...], priority: str | None, refusal: str
) -> None:
    device = choose_device()
    info = replace(device.info, extensions=extensions)
    queue, found = open_first_queue(replace(device, info=info), priority)
    queue.finish()
    if found or not extensions:
        where = "" if priority == "highest" else f"{re.escape(info.name)} "
        assert re.match(where + refusal, found)
        assert refusal
