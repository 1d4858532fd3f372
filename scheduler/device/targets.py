"""Chooses the device row to compile for: by name, or for a device of this machine.

A device row holds the properties of one kind of device, see `scheduler/device/spec.py`.
"""

from __future__ import annotations

import platform
import re
from dataclasses import replace
from typing import Final

from runtime.errors import NoDeviceError
from runtime.opencl.device import Device, DeviceInfo, choose_device
from scheduler.device.spec import DEFAULT, SPECS, DeviceSpec
from scheduler.errors import SchedulerError

AUTO: Final = "auto"
# Choices of `--target`; the other rows are only selected by `auto`.
TARGETS: Final = (AUTO, "cpu", "gpu", "adreno", "freedreno")
# Rows of CPUs by the instruction set of the driver's compiler, see `runtime.opencl.probe.Finding`.
# AVX without multiply-adds has the lanes and registers of AVX2, which are what a row depends on.
_ROWS_OF_SIMD: Final = {
    "avx512": "cpu",
    "avx512_vnni": "cpu",
    "avx2": "cpu-avx2",
    "avx2_vnni": "cpu-avx2",
    "avx": "cpu-avx2",
    "sse": "cpu-sse",
    "neon": "cpu-neon",
}
# Names of Adreno devices: "FD630" in Mesa's freedreno, "QUALCOMM Adreno(TM) 630" in Qualcomm's
# driver.
_ADRENO: Final = {"freedreno": re.compile(r"\bfd\d{3}\b"), "adreno": re.compile("adreno")}
# Number of compute units that freedreno reports for every GPU, as it does not know it.
_UNKNOWN_UNITS: Final = 9999
# Rows by the driver's vector width, if the instruction set is unknown because it compiles by
# SPIR-V.
_ROWS_OF_WIDTH: Final = {16: "cpu", 8: "cpu-avx2"}


def target_for(name: str, device: str | None = None) -> DeviceSpec:
    """Return a row by name, or for "auto" the row of the device, or `cpu` without a device.

    `device` selects a device as in `runtime.load_program`.

    Raises:
        SchedulerError: there is no such row.
        NoDeviceError: "auto", and the requested device does not exist.
    """
    if name != AUTO:
        if name not in SPECS:
            raise SchedulerError(f"target {name!r}: expected {AUTO} or one of {', '.join(SPECS)}")
        return SPECS[name]
    try:
        return spec_of_device(choose_device(device))
    except NoDeviceError:
        if device is not None:
            raise
        return DEFAULT


def spec_of_device(device: Device) -> DeviceSpec:
    """Return the row of an opened device, with properties that it reports in place of defaults."""
    row = _row_of(device)
    return replace(row, float64=row.float64 and "cl_khr_fp64" in device.info.extensions)


def _row_of(device: Device) -> DeviceSpec:
    info = device.info
    if info.kind != "gpu":
        row = SPECS[_cpu_row(info)]
        return replace(
            row,
            cores=max(1, info.compute_units),
            host_clang=row.host_clang and info.is_pocl,
            dot4=info.simd.endswith("_vnni"),
            fused=info.fuses,
        )
    known_as = f"{info.name} {info.platform} {info.version}".lower()
    named = (row for row, name in _ADRENO.items() if name.search(known_as) and info.images)
    row = SPECS[next(named, "gpu")]
    most = min(row.max_group, info.max_work_group_size)
    limits = (*info.max_image, *info.max_image_args)
    return replace(
        row,
        images=None if row.images is None else row.images.within(*limits),
        group=min(row.group, most),
        max_group=most,
        cores=info.compute_units if 0 < info.compute_units < _UNKNOWN_UNITS else row.cores,
        local_bytes=min(row.local_bytes, info.local_mem_bytes),
        max_alloc_bytes=info.max_alloc_bytes,
    )


def _cpu_row(info: DeviceInfo) -> str:
    narrow = "cpu-neon" if platform.machine() in ("aarch64", "arm64") else "cpu-sse"
    return _ROWS_OF_SIMD.get(info.simd) or _ROWS_OF_WIDTH.get(info.vector_width, narrow)
