"""Finds OpenCL devices, selects one, and opens it.

No other module queries platforms. The executor, the compiler and `modeld devices` use this one.
"""

import functools
import os
import re
import resource
import warnings
from dataclasses import dataclass, replace
from typing import Final

from runtime.errors import NoDeviceError, first_line
from runtime.opencl.binding import cl
from runtime.opencl.pocl import MISSING, POCL, WHEEL_VERSION, ensure_linker
from runtime.opencl.probe import UNKNOWN, examine
from runtime.opencl.recording import Support, support_of
from runtime.opencl.workers import Candidates, Workers, call_tracking_threads

# The PoCL wheel on PyPI exists for this processor only. Elsewhere PoCL comes from the distribution.
_WITH_WHEEL: Final = "x86_64"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The properties of an OpenCL device that are known without opening it."""

    index: str  # "platform:device", as accepted by `choose_device`
    platform: str  # name of the OpenCL platform
    name: str
    driver: str  # the versions that, together with the name, determine a compiled binary
    kind: str  # "gpu", "cpu" or "other"
    version: str  # OpenCL version, as reported by the device
    compute_units: int
    clock_mhz: int
    global_mem_bytes: int
    max_alloc_bytes: int
    local_mem_bytes: int
    max_work_group_size: int  # work-items
    base_align_bytes: int  # alignment of sub-buffers
    unified_memory: bool  # whether host and device share memory
    images: bool  # whether it supports images
    half_arithmetic: bool  # whether it computes in fp16
    extensions: tuple[str, ...]
    problem: str  # the reason that it cannot be used; "" if it can
    simd: str = UNKNOWN  # the compiler's SIMD level, see `runtime.opencl.probe.Finding`
    vector_width: int = 1  # float32 elements of a vector, as reported by the driver
    cpu: str = ""  # PoCL's name of the CPU
    max_image: tuple[int, int] = (0, 0)  # largest two-dimensional image: width, height in texels
    max_image_args: tuple[int, int] = (0, 0)  # images that one kernel can read, and write
    recording: Support | None = None  # support for recording launches as one command

    @property
    def is_pocl(self) -> bool:
        """Whether this is a PoCL device."""
        return self.platform == POCL

    @property
    def max_buffer_args(self) -> int | None:
        """The most buffers of one kernel, beyond which the driver kills the process; None: unknown.

        freedreno of Mesa 25.0.7 has a table of 16 entries and no check.
        """
        is_freedreno = self.platform == "rusticl" and self.name.startswith("FD")
        return 16 if is_freedreno else None

    @property
    def fuses(self) -> bool:
        """Whether it is a PoCL CPU that multiplies and adds with a single rounding (FMA)."""
        return self.is_pocl and self.simd.startswith(_FUSING)


# AVX alone has no fused multiply-add, but every processor with AVX2 does.
_FUSING: Final = ("avx2", "avx512", "neon")


@dataclass(frozen=True, eq=False)
class Device:
    """An opened device: its description, and an OpenCL context that its programs share."""

    info: DeviceInfo
    handle: cl.Device
    context: cl.Context
    candidates: Candidates | None = None  # threads that may be the device's workers

    def workers(self) -> Workers | None:
        """Return the driver's worker threads, once kernels have run; None if not known."""
        return None if self.candidates is None else self.candidates.workers()


def list_devices() -> list[DeviceInfo]:
    """Describe every OpenCL device, in the order of preference of `choose_device(None)`.

    `problem` is set for devices that cannot be used. Without any OpenCL platform the list is empty.
    """
    found = [_examined(info, handle) for info, handle in _discover()]
    return sorted(found, key=lambda info: bool(info.problem))


def choose_device(name: str | None = None) -> Device:
    """Open one device. The same device is opened once and shared.

    `name` is None or "auto" (a GPU, otherwise a CPU), "gpu", "cpu", an index "platform:device" as
    printed by `modeld devices`, "pocl", or a part of the device's or platform's name. Raises
    NoDeviceError, with a list of the devices, if none matches or the match cannot be used.
    """
    found = _discover()
    if not found:
        raise NoDeviceError(f"no OpenCL device on this machine; {_hint()}")
    matching = [(info, handle) for info, handle in found if _matches(info, name or "auto")]
    if not matching:
        names = ", ".join(f"{info.index} {info.name}" for info, _ in found)
        raise NoDeviceError(f"no OpenCL device matches {name!r}; there are: {names}")
    problems = []
    for found_info, handle in matching:
        info = _examined(found_info, handle)
        if not info.problem:
            return _open(info, handle)
        problems.append(f"{info.name}: {info.problem}")
    raise NoDeviceError(problems[0])


@functools.lru_cache(maxsize=64)
def _examined(info: DeviceInfo, handle: cl.Device) -> DeviceInfo:
    """Return the description completed by a probe. Each device is probed once."""
    if info.problem:
        return info
    found = examine(handle, info.index)
    driver = info.driver
    if found.cpu and not driver.endswith(f"-{found.cpu}"):
        driver += f"; compiles for {found.cpu}"
    return replace(info, driver=driver, problem=found.problem, simd=found.simd, cpu=found.cpu)


@functools.lru_cache(maxsize=8)
def _open(info: DeviceInfo, handle: cl.Device) -> Device:
    try:
        context = cl.Context([handle])
    except cl.Error as error:
        raise NoDeviceError(f"{info.name}: cannot be opened: {first_line(error)}") from error
    # Threads start while listing platforms or devices, depending on loader and drivers.
    threads = (*_platforms()[1], *_devices_of(handle.platform)[1])
    return Device(info, handle, context, Candidates(threads, info.compute_units))


def _hint() -> str:
    """Return advice if no device is found. A memory limit can also prevent loading a driver."""
    machine = os.uname().machine
    hint = "install the `pocl` extra (pip install 'modeld[pocl]') or an OpenCL driver"
    if machine != _WITH_WHEEL:
        hint = (
            "install an OpenCL driver, such as Debian's PoCL (apt-get install pocl-opencl-icd); "
            f"the `pocl` extra has none for {machine}"
        )
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return hint
    return (
        f"{hint}; or allow this process more than {limit >> 20} MiB of memory "
        "(LimitAS of the unit, or `ulimit -v`), into which a driver may not fit"
    )


def _matches(info: DeviceInfo, name: str) -> bool:
    wanted = name.lower()
    if wanted == "auto":
        return True
    if wanted in ("gpu", "cpu"):
        return info.kind == wanted
    if wanted == "pocl":
        return info.is_pocl
    if re.fullmatch(r"\d+:\d+", wanted):
        return info.index == wanted
    return wanted in info.name.lower() or wanted in info.platform.lower()


@functools.lru_cache(maxsize=1)
def _platforms() -> tuple[tuple[cl.Platform, ...], tuple[int, ...]]:
    """Return all platforms, and the threads that their drivers started during the call."""
    try:
        platforms, threads = call_tracking_threads(cl.get_platforms)
        return tuple(platforms), threads
    except cl.Error as error:  # PLATFORM_NOT_FOUND_KHR: no driver is installed
        if error.code == cl.status_code.PLATFORM_NOT_FOUND_KHR:
            return (), ()
        raise NoDeviceError(
            f"the OpenCL platforms cannot be listed: {first_line(error)}"
        ) from error


@functools.lru_cache(maxsize=8)
def _devices_of(platform: cl.Platform) -> tuple[tuple[cl.Device, ...], tuple[int, ...]]:
    """Return the devices of a platform, and the threads that its driver started for them."""
    try:
        devices, threads = call_tracking_threads(platform.get_devices)
    except cl.Error:  # a platform without devices is not an error
        return (), ()
    return tuple(devices), threads


def _discover() -> list[tuple[DeviceInfo, cl.Device]]:
    """Return all devices with their descriptions, preferred first: GPUs, CPUs (PoCL's), others."""
    found = []
    for number, platform in enumerate(_platforms()[0]):
        for index, handle in enumerate(_devices_of(platform)[0]):
            found.append((_describe(f"{number}:{index}", platform, handle), handle))
    found.sort(key=lambda item: _rank(item[0]))
    return found


def _rank(info: DeviceInfo) -> tuple[bool, int, int]:
    """Return the sort key of a device.

    Among CPUs PoCL comes first, because our measurements are made with it. The PoCL of our wheel
    precedes others, so that installing another one changes nothing.
    """
    kind = {"gpu": 0, "cpu": 1}.get(info.kind, 2)
    ours = info.is_pocl and f"; {WHEEL_VERSION}; " in info.driver
    return bool(info.problem), kind, 0 if ours or info.kind != "cpu" else 1 if info.is_pocl else 2


def _describe(index: str, platform: cl.Platform, handle: cl.Device) -> DeviceInfo:
    extensions = tuple(sorted(set(handle.extensions.split())))
    # The device version contains PoCL's name of the CPU. Two machines with the same marketing name
    # can differ in AVX-512, and a binary for one would crash the other.
    driver = f"{platform.version.strip()}; {handle.driver_version}; {handle.version.strip()}"
    return DeviceInfo(
        index=index,
        platform=platform.name.strip(),
        name=handle.name.strip(),
        driver=driver,
        kind=_kind_of(handle),
        version=handle.version.strip(),
        compute_units=handle.max_compute_units,
        clock_mhz=handle.max_clock_frequency,
        global_mem_bytes=handle.global_mem_size,
        max_alloc_bytes=handle.max_mem_alloc_size,
        local_mem_bytes=handle.local_mem_size,
        max_work_group_size=handle.max_work_group_size,
        base_align_bytes=handle.mem_base_addr_align // 8,
        unified_memory=_unified_memory(handle),
        images=bool(handle.image_support),
        half_arithmetic="cl_khr_fp16" in extensions,
        extensions=extensions,
        problem=_problem_of(platform.name.strip(), handle),
        vector_width=handle.native_vector_width_float,
        max_image=(handle.image2d_max_width, handle.image2d_max_height),
        max_image_args=(handle.max_read_image_args, handle.max_write_image_args),
        recording=support_of(handle),
    )


def _kind_of(handle: cl.Device) -> str:
    if handle.type & cl.device_type.GPU:
        return "gpu"
    return "cpu" if handle.type & cl.device_type.CPU else "other"


def _unified_memory(handle: cl.Device) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # renamed in OpenCL 2.0, still works
        return bool(handle.host_unified_memory)


def _problem_of(platform: str, handle: cl.Device) -> str:
    if platform == POCL and not ensure_linker():
        return MISSING
    if not handle.available:
        return "the driver says it is not available"
    if not handle.compiler_available:
        return "the driver has no compiler"
    if not handle.endian_little:
        return "it is big endian, artifacts are little endian"
    return ""
