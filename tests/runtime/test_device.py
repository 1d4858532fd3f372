"""Discovery and the environment that PoCL needs, tried in fresh processes without either."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.cache_dir import cache_dir
from runtime.device import _rank, choose_device, list_devices
from runtime.errors import NoDeviceError
from runtime.linker import ensure_linker

pytestmark = pytest.mark.opencl

# What a command line does: one line and the exit code, never a traceback.
CODE = """
import sys
from runtime import RuntimeFault, run_once
from tests.runtime import tiny
try:
    print(*run_once(tiny.manifest(), tiny.data_blob(), tiny.inputs())["y"])
except RuntimeFault as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def run_in_fresh_process(
    tmp_path: Path, code: str = CODE, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"MODELD_CACHE_DIR": str(tmp_path / "cache"), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_no_platform_is_exit_code_3_and_names_the_pocl_extra(tmp_path: Path) -> None:
    # A path that does not exist: with an empty directory the loader goes back to its own drivers.
    nowhere = str(tmp_path / "vendors")
    result = run_in_fresh_process(tmp_path, PATH=os.environ["PATH"], OCL_ICD_VENDORS=nowhere)
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr == (
        "no OpenCL device on this machine; install the `pocl` extra "
        "(pip install 'modeld[pocl]') or an OpenCL driver\n"
    )


def test_where_memory_is_limited_no_platform_names_the_limit(tmp_path: Path) -> None:
    """A driver that cannot be loaded for want of memory is as one that is not there."""
    limit = 8 << 30
    code = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))\n{CODE}"
    nowhere = str(tmp_path / "vendors")
    result = run_in_fresh_process(tmp_path, code, PATH=os.environ["PATH"], OCL_ICD_VENDORS=nowhere)
    assert (result.returncode, result.stdout) == (3, "")
    assert "; or allow this process more than 8192 MiB of memory" in result.stderr
    assert result.stderr.count("\n") == 1


def hide_ziglang(tmp_path: Path) -> str:
    """Return a module path on which `ziglang` has no program."""
    (tmp_path / "hidden" / "ziglang").mkdir(parents=True)
    (tmp_path / "hidden" / "ziglang" / "__init__.py").touch()
    return str(tmp_path / "hidden")


def test_pocl_without_any_linker_is_refused_before_it_aborts(tmp_path: Path) -> None:
    if not choose_device().info.is_pocl:
        pytest.skip("only PoCL needs a linker")
    result = run_in_fresh_process(tmp_path, PATH="/nonexistent", PYTHONPATH=hide_ziglang(tmp_path))
    assert (result.returncode, result.stdout) == (3, "")
    assert "PoCL needs the linker `ld` on PATH" in result.stderr
    assert "pip install ziglang" in result.stderr
    assert result.stderr.count("\n") == 1


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
        result = run_in_fresh_process(tmp_path, PATH="/nonexistent", PYTHONPATH=str(package.parent))
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.split() == ["12.0", "24.0", "36.0", "48.0"]
    assert set(log.read_text(encoding="utf-8").split()) == {"ld.lld"}


def test_linker_of_the_default_path_is_found_where_path_is_not_set(tmp_path: Path) -> None:
    if not shutil.which("ld", path=os.defpath) or not choose_device().info.is_pocl:
        pytest.skip("needs PoCL and a system linker")
    result = run_in_fresh_process(tmp_path)  # PoCL aborts the process if it finds none
    assert (result.returncode, result.stderr) == (0, "")


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


def test_cache_directory_is_private_and_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert cache_dir() == tmp_path / "a" / "b"
    assert cache_dir().stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("MODELD_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "modeld"


def test_cache_directory_that_cannot_be_made_is_replaced_by_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path / "file" / "cache"))
    directory = cache_dir()
    assert directory.is_dir()
    assert not directory.is_relative_to(tmp_path / "file")
    assert (
        "cannot be written or is nearly full; kernels are built again at every start" in caplog.text
    )


def test_cache_directory_on_a_full_disk_is_replaced_by_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """PoCL aborts the process where it cannot write."""
    free = shutil.disk_usage(tmp_path).free
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path / "full"))
    monkeypatch.setattr("runtime.cache_dir.MIN_FREE_BYTES", free + (1 << 40))
    assert not cache_dir().is_relative_to(tmp_path)
    assert "cannot be written or is nearly full" in caplog.text


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
