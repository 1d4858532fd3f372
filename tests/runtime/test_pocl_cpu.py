"""PoCL's name of the CPU: what is put in its place, and when nothing is touched."""

import json
import os
import platform
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyopencl
import pytest

from runtime.opencl import pocl, probe
from runtime.opencl.binding import cl
from runtime.opencl.device import choose_device
from runtime.opencl.pocl import cpu_flags, level_of, name_in_force, rename
from tests.runtime.children import run_bare

pytestmark = pytest.mark.opencl

BASE = "fpu sse sse2 lm nx "
V2 = BASE + "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 "
V3 = V2 + "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave "
V4 = V3 + "avx512f avx512bw avx512cd avx512dq avx512vl "
VNNI = "avx512_vnni adx aes clflushopt clwb fsgsbase pclmulqdq rdrand rdseed 3dnowprefetch "

REPORT = """
import json, sys
from runtime import RuntimeFault, choose_device, run_once
from tests.runtime import tiny
try:
    info = choose_device().info
    y = run_once(tiny.manifest(), tiny.data_blob(), tiny.inputs())["y"].tolist()
    print(json.dumps([info.cpu, info.simd, info.driver, y]))
except RuntimeFault as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""
NEEDS_RECORD = pytest.mark.usefixtures("handle")

# A PoCL whose record cannot be written, with a name that its compiler refuses.
HELPLESS = """
from runtime.opencl import pocl
from runtime.opencl.binding import cl
for platform in cl.get_platforms():
    for device in platform.get_devices():
        pocl.rename(device, "generic")
pocl.rename = lambda handle, name: False
"""


def run(cache: Path, code: str, **environment: str) -> tuple[int, str, str]:
    alone = Path(pyopencl.__file__).parent / ".libs" / "pocl.icd"
    if alone.is_file():  # other drivers of this machine would be taken instead
        environment["OCL_ICD_VENDORS"] = str(alone)
    return run_bare(code, cache, PATH=os.environ["PATH"], **environment)


@pytest.fixture
def handle() -> cl.Device:
    """A device whose record is the one that was examined."""
    found = choose_device().handle
    if platform.machine() != "x86_64" or found.driver_version.strip() not in pocl._TRIPLE_AT:
        pytest.skip("needs the PoCL of the pocl extra, on x86-64")
    assert name_in_force(found) is not None
    return found


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        (BASE, "x86-64"),
        (V2, "x86-64-v2"),
        (V2 + "avx f16c xsave", "x86-64-v2"),  # Ivy Bridge
        (V2 + "avx avx2 bmi1 bmi2 f16c abm movbe xsave", "x86-64-v2"),  # a guest without FMA
        (V3, "x86-64-v3"),
        (V3 + "avx512f avx512cd", "x86-64-v3"),  # Knights Landing
        (V4, "x86-64-v4"),
        (V4 + VNNI, "cascadelake"),
        ((V4 + VNNI).replace(" clwb ", " "), "x86-64-v4"),
        (V4.replace(" fma ", " "), "x86-64-v2"),  # no level without those below it
        ("", "x86-64"),
    ],
)
def test_level_follows_the_flags(flags: str, level: str) -> None:
    assert level_of(frozenset(flags.split())) == level


@pytest.mark.slow
@pytest.mark.parametrize("name", ["generic", "no-such-cpu"])
@NEEDS_RECORD
def test_name_that_clang_refuses_is_replaced_by_a_level(name: str, tmp_path: Path) -> None:
    for _ in range(2):  # the second start finds what the first one learned
        code, out, err = run(tmp_path, REPORT, MODELD_POCL_CPU=name)
        assert (code, err) == (0, "")
        cpu, simd, driver, y = json.loads(out)
        assert cpu == level_of(cpu_flags())
        assert simd == probe._OF_LEVEL.get(cpu, "sse")
        assert driver.endswith((f"-{cpu}", f"; compiles for {cpu}"))
        assert y == [12.0, 24.0, 36.0, 48.0]


@pytest.mark.slow
@NEEDS_RECORD
def test_name_that_was_asked_for_stays_where_clang_knows_it(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, REPORT, MODELD_POCL_CPU="x86-64-v2")
    assert (code, err) == (0, "")
    cpu, simd, driver, _ = json.loads(out)
    assert (cpu, simd) == ("x86-64-v2", "sse")
    assert driver.endswith("; compiles for x86-64-v2")


@NEEDS_RECORD
def test_compiler_uses_what_the_cpu_has() -> None:
    if pocl.forced_name():
        pytest.skip("the name of the CPU was asked for")
    wanted = probe._OF_LEVEL.get(level_of(cpu_flags()))
    assert wanted in (None, choose_device().info.simd)


@pytest.mark.slow
@NEEDS_RECORD
def test_where_the_name_cannot_be_replaced_one_line_says_what_to_install(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, HELPLESS + REPORT)
    assert (code, out) == (3, "")
    reason = "does not know this CPU (a kernel of three lines fails: error: unknown target CPU"
    assert reason in err
    assert "install another OpenCL driver (Debian: pocl-opencl-icd)" in err
    assert err.count("\n") == 1
    _, listed, _ = run(tmp_path, HELPLESS + "from tools.cli import main\nmain(['devices'])")
    assert reason in listed


@NEEDS_RECORD
def test_variable_is_refused_on_a_driver_it_is_not_for(tmp_path: Path) -> None:
    other = "from runtime.opencl import pocl; pocl._TRIPLE_AT.clear()" + REPORT
    code, _, err = run(tmp_path, other, MODELD_POCL_CPU="generic")
    assert code == 3
    assert "MODELD_POCL_CPU is not for this driver; unset it" in err
    assert err.count("\n") == 1


def like(handle: cl.Device, **changes: Any) -> cl.Device:
    """A device that says of itself what `handle` says, but for some of it."""
    names = ("driver_version", "platform", "version", "int_ptr")
    return cast(cl.Device, SimpleNamespace(**{n: getattr(handle, n) for n in names} | changes))


def test_no_other_record_is_read_or_written(handle: cl.Device) -> None:
    name = name_in_force(handle)
    others = [
        like(handle, driver_version="3.1"),
        like(handle, platform=SimpleNamespace(name="rusticl")),
        # Another device's version: the words hold another triple, or another name.
        like(handle, version="OpenCL 3.0 PoCL HSTR: pthread-aarch64-unknown-linux-gnu-generic"),
        like(handle, version="OpenCL 3.0 CUDA"),
        like(handle, int_ptr=handle.int_ptr - 8),
        like(handle, int_ptr=handle.int_ptr + 8),
        like(handle, int_ptr=8),  # nothing is mapped there
        like(handle, int_ptr=(1 << 64) - 0x300),
        like(handle, int_ptr=1 << 62),
    ]
    for other in others:
        assert name_in_force(other) is None
        assert not rename(other, "generic")
    assert name_in_force(handle) == name


@pytest.fixture
def unforced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("MODELD_POCL_CPU", raising=False)


@pytest.mark.usefixtures("unforced")
def test_probe_is_remembered(
    handle: cl.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = probe.examine(handle, "0:0")
    assert first.problem == ""

    def never(*_: object, **__: object) -> probe.Finding:
        raise AssertionError("the kernel was built again")

    monkeypatch.setattr(probe, "try_in_process", never)
    assert probe.examine(handle, "0:0") == first
    for entry in (tmp_path / "probes").iterdir():
        entry.write_bytes(b"\xff")
    with pytest.raises(AssertionError, match="built again"):  # a damaged entry is no entry
        probe.examine(handle, "0:0")


@pytest.mark.usefixtures("unforced")
def test_failure_is_not_remembered(handle: cl.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(probe, "SOURCE", "__kernel void probe(__global int* y) { y[0] = x; }")
        found = probe.examine(handle, "0:0")
    assert found.problem.startswith("a kernel of three lines fails: ")
    assert "undeclared identifier 'x'" in found.problem
    assert probe.examine(handle, "0:0").problem == ""


def test_wrong_result_is_a_problem(handle: cl.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = probe.SOURCE.replace("3 *", "4 *")
    monkeypatch.setattr(probe, "SOURCE", wrong)
    found = probe.try_in_process(handle)
    assert found.problem.endswith("expected [15, 19, 23, 27], found [20, 25, 30, 35]")


@pytest.mark.slow
def test_driver_that_ends_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PoCL does so without a linker: a real driver's real end."""
    if not choose_device().info.is_pocl:
        pytest.skip("needs PoCL")
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "pocl"))
    index = choose_device().info.index
    monkeypatch.setenv("PATH", "/nonexistent")
    assert re.fullmatch(
        r"the driver ends the process at a kernel of three lines \(\S+\)",
        probe._try_in_subprocess(index).problem,
    )
    monkeypatch.undo()
    assert probe._try_in_subprocess(index).problem == ""
