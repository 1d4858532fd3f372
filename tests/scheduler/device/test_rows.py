"""Rows of the device table: their figures, which costs follow from, and which one a device gets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runtime.opencl.device import DeviceInfo, choose_device
from scheduler.device.spec import SPECS, Half, Images, Peak, spec_of
from scheduler.device.targets import spec_of_device, target_for
from scheduler.errors import SchedulerError


def test_the_figures_are_the_kept_ones(golden: Callable[[str, str], None]) -> None:
    rows = (f"{name}\n  " + spec.key().replace("; ", "\n  ") for name, spec in SPECS.items())
    golden("device_rows", "\n".join(rows) + "\n")


def test_rows_say_where_their_figures_come_from() -> None:
    for name, row in SPECS.items():
        assert row.target == row.limits.target == name
        assert row.sources
        assert spec_of(name) is row
    with pytest.raises(SchedulerError, match="'tpu': expected one of cpu, "):
        spec_of("tpu")
    with pytest.raises(SchedulerError, match="found 3"):
        replace(SPECS["cpu"], lanes=3)
    with pytest.raises(SchedulerError, match="1 to 256 items, found 512"):
        replace(SPECS["gpu"], group=512)


def test_rows_differ_by_their_figures_and_not_by_where_those_come_from() -> None:
    half = Half(storage=False, arithmetic=False)
    changed = replace(SPECS["cpu"], cores=7, half=half, peak=Peak())
    assert changed.key() != SPECS["cpu"].key()
    assert replace(SPECS["cpu"], sources=("elsewhere",)).key() == SPECS["cpu"].key()


@pytest.mark.opencl
def test_auto_takes_the_row_of_the_device() -> None:
    device = choose_device(None)
    assert target_for("auto") == (found := spec_of_device(device))
    assert found.cores == device.info.compute_units
    assert target_for("adreno", "no such device") is SPECS["adreno"]
    gpu = replace(device.info, kind="gpu", name="QUALCOMM Adreno(TM) 630", images=True)
    few = replace(gpu, name="FD630", platform="rusticl", max_image=(9, 7), max_image_args=(16, 8))
    fewer = Images(9, 7, 16, 8, 64, sampler_less=True)
    cases: dict[DeviceInfo, dict[str, Any]] = {
        gpu: {"target": "adreno"},
        few: {"target": "freedreno", "images": fewer},
        # freedreno does not know how many there are, and has a number for that.
        replace(few, compute_units=9999): {"cores": SPECS["adreno"].cores},
        replace(gpu, name="another", max_work_group_size=16): {
            "target": "gpu",
            "group": 16,
            "max_group": 16,
            "cores": gpu.compute_units,
        },
    }
    for info, expected in cases.items():
        row = spec_of_device(replace(device, info=info))
        assert {name: getattr(row, name) for name in expected} == expected


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("simd", "width", "row"),
    [
        ("avx512", 16, "cpu"),
        ("avx512_vnni", 16, "cpu"),
        ("avx2_vnni", 8, "cpu-avx2"),
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
    assert spec.dot4 == simd.endswith("_vnni")
    silent = replace(info, simd="unknown", vector_width=1)
    assert spec_of_device(replace(device, info=silent)).lanes == 4


@pytest.mark.opencl
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
