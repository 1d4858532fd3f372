"""Recordings of launches, under a layer of the OpenCL loader that is written in C.

A process loads layers when it starts, so the tests of tests/recordings run in one of their own.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from runtime.opencl.pocl import find_zig

# Kernels are built without any cache.
pytestmark = [pytest.mark.opencl, pytest.mark.slow, pytest.mark.alone]

SUITE = Path(__file__).parents[1] / "recordings"


def compiler() -> list[str]:
    """Return the machine's compiler of C, or the one in the extra `linker`."""
    found, zig = shutil.which("cc"), find_zig()
    if found is None and zig is None:
        pytest.skip("no compiler of C: neither cc nor the extra `linker`")
    return [found] if found else [str(zig), "cc"]


@pytest.mark.parametrize("tests", ["test_recorded.py", "test_faults.py"])
def test_recordings_under_a_layer(tests: str, tmp_path: Path) -> None:
    layer = tmp_path / "layer.so"
    warnings = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter")
    subprocess.run(
        [*compiler(), *warnings, "-O1", "-fPIC", "-shared", "-o", layer, SUITE / "layer.c"],
        check=True,
    )
    # A short path of the session's, as those of sockets have 107 bytes at most.
    place = f"--basetemp={tempfile.mkdtemp(prefix='r')}"
    suite = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", place, str(SUITE / tests)],
        env={**os.environ, "OPENCL_LAYERS": str(layer), "POCL_CACHE_DIR": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if suite.returncode:
        pytest.fail(suite.stdout[-6000:] + suite.stderr[-2000:], pytrace=False)
