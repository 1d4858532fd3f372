"""Choose the row of the device table to compile for: by name, or the one of this machine."""

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
# What `--target` offers; the other rows are found by `auto`.
TARGETS: Final = (AUTO, "cpu", "gpu", "adreno", "freedreno")
# Rows of CPUs by what the driver's compiler generates, see `runtime.opencl.probe.Finding`. AVX
# without multiply-adds has the lanes and registers of AVX2, which is what a row decides by.
_ROWS_OF_SIMD: Final = {
    "avx512": "cpu",
    "avx512_vnni": "cpu",
    "avx2": "cpu-avx2",
    "avx2_vnni": "cpu-avx2",
    "avx": "cpu-avx2",
    "sse": "cpu-sse",
    "neon": "cpu-neon",
}
# How drivers name an Adreno: Mesa's freedreno "FD630", Qualcomm's "QUALCOMM Adreno(TM) 630".
_ADRENO: Final = {"freedreno": re.compile(r"\bfd\d{3}\b"), "adreno": re.compile("adreno")}
# Compute units that freedreno says every GPU has, as it does not know.
_UNKNOWN_UNITS: Final = 9999
# Where the compiler does not say (SPIR-V between it and the CPU), by the driver's vector width.
_ROWS_OF_WIDTH: Final = {16: "cpu", 8: "cpu-avx2"}


def target_for(name: str, device: str | None = None) -> DeviceSpec:
    """Return the row to compile for: by name, or for "auto" that of the device, else `cpu`.

    `device` is as for `runtime.load_program`.

    Raises:
        SchedulerError: there is no such row.
        NoDeviceError: "auto", and the device that was asked for is not there.
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
    """Return the row of an opened device, with what it says of itself in place of guesses."""
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
