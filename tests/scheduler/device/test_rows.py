"""Which row of the table a CPU gets: by what the driver's compiler generates."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from runtime.device import choose_device
from scheduler.device.spec import SPECS
from scheduler.device.targets import spec_of_device

pytestmark = pytest.mark.opencl


@pytest.mark.parametrize(
    ("simd", "width", "row"),
    [
        ("avx512", 16, "cpu"),
        ("avx2", 16, "cpu-avx2"),  # what the compiler generates, not what the CPU has
        ("avx", 8, "cpu-avx2"),
        ("sse", 16, "cpu-sse"),
        ("neon", 4, "cpu-neon"),
        ("unknown", 16, "cpu"),
        ("unknown", 8, "cpu-avx2"),
    ],
)
def test_row_of_a_cpu_follows_what_its_compiler_generates(simd: str, width: int, row: str) -> None:
    device = choose_device(None)
    info = replace(device.info, kind="cpu", simd=simd, vector_width=width, compute_units=7)
    spec = spec_of_device(replace(device, info=info))
    assert (spec.target, spec.lanes, spec.cores) == (row, SPECS[row].lanes, 7)
    silent = replace(info, simd="unknown", vector_width=1)
    assert spec_of_device(replace(device, info=silent)).lanes == 4


@pytest.mark.slow
def test_forced_name_forces_the_row() -> None:
    """A processor without AVX, as far as the driver's compiler is concerned."""
    if choose_device(None).info.cpu == "":
        pytest.skip("needs the PoCL of the pocl extra, on x86-64")
    code = """
import numpy as np
from runtime import choose_device
from scheduler import Tensor
from scheduler.device.targets import target_for
a = np.arange(12 * 40, dtype=np.float32).reshape(12, 40) / 64
w = (np.arange(40 * 24, dtype=np.float32).reshape(40, 24) - 300) / 512
got = (Tensor(a) @ Tensor(w)).sin().numpy()
spec = target_for("auto")
worst = np.abs(got - np.sin(a.astype(np.float64) @ w)).max()
print(choose_device().info.cpu, spec.target, spec.lanes, worst < 1e-4)
"""
    environment = {**os.environ, "MODELD_POCL_CPU": "x86-64-v2"}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")  # clang warns of vectors that are too wide
    assert result.stdout.split() == ["x86-64-v2", "cpu-sse", "4", "True"]
