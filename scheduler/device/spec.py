"""Describes kinds of devices as data: DeviceSpec, its limits, and the table of all device rows.

    context = CompileContext(spec=SPECS["adreno"])     # images, 4 lanes, work-groups of 64

A row is the DeviceSpec of one kind of device, found by its target name. The compiler has no code
for individual devices; all differences are fields of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Final

from scheduler.device.costs import Costs, LoopCosts, WinogradCosts
from scheduler.errors import SchedulerError

# The buffers of one operation: the result and the three sources of WHERE.
MIN_BUFFERS: Final = 4
# Compile time grows faster than the number of operations. The largest kernel of the example
# models has about 60.
MAX_OPERATIONS: Final = 512


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one kernel. Raises SchedulerError if they exclude some single operation."""

    target: str  # name of the row
    buffers: int  # most buffers as arguments, results included
    parameter_bytes: int  # most bytes of all arguments; each argument is a pointer
    source: str  # source of the numbers
    operations: int = MAX_OPERATIONS  # most fused elementwise operations
    pointer_bytes: int = 8  # width of a pointer argument

    def __post_init__(self) -> None:
        if self.max_buffers < MIN_BUFFERS or self.operations < 1:
            raise SchedulerError(
                f"limits of {self.target}: expected at least {MIN_BUFFERS} buffers and one "
                f"operation per kernel, found {self.max_buffers} and {self.operations}"
            )

    @property
    def max_buffers(self) -> int:
        """Most buffers per kernel, results included, by their number and by their bytes."""
        return min(self.buffers, self.parameter_bytes // self.pointer_bytes)

    def fits(self, reads: int, writes: int = 1) -> bool:
        """Whether a kernel may read and write this many distinct buffers."""
        return reads + writes <= self.max_buffers


@dataclass(frozen=True, slots=True)
class Images:
    """Limits and properties of a device's images.

    Attributes:
        max_width, max_height: largest two-dimensional image, in texels.
        max_reads, max_writes: most image arguments of one kernel.
        pitch_texels: alignment of rows, in texels, for images that are views of a buffer; 1 if
            images have separate memory.
        sampler_less: whether in-bounds reads are faster without a sampler.
    """

    max_width: int
    max_height: int
    max_reads: int
    max_writes: int
    pitch_texels: int = 1
    sampler_less: bool = False

    def within(self, width: int, height: int, reads: int, writes: int) -> Images:
        """Return these limits reduced to those of a device."""
        return replace(
            self,
            max_width=min(self.max_width, width),
            max_height=min(self.max_height, height),
            max_reads=min(self.max_reads, reads),
            max_writes=min(self.max_writes, writes),
        )


@dataclass(frozen=True, slots=True)
class Half:
    """Half precision: whether it may be stored, and whether the device computes with it."""

    storage: bool
    arithmetic: bool


@dataclass(frozen=True, slots=True)
class Peak:
    """Upper bounds for performance estimates; 0 if unknown.

    Attributes:
        gflops: 10**9 float32 operations per second on all cores; a multiply-add counts as two.
        half_gflops: the same for float16.
        gbytes: 10**9 bytes per second of memory traffic.
        launch_us: overhead of a launch, in microseconds.
    """

    gflops: float = 0.0
    half_gflops: float = 0.0
    gbytes: float = 0.0
    launch_us: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One kind of device.

    Attributes:
        target: name of the row, stored in an artifact's manifest.
        limits: limits of one kernel.
        lanes: float32 elements per vector.
        vector_registers: vectors that a work-item can keep, accumulators and operands together.
        cores: number of compute units.
        core_lanes: multiply-adds per compute unit and clock; 0 if unknown or not used.
        l1_bytes, l2_bytes: data caches per core; on GPUs, l2 is shared by all cores.
        local_bytes: local memory per work-group; 0 if it is no faster than the cache.
        group: work-items per work-group; 1 means loops inside a work-item.
        max_group: the largest work-group.
        subgroup: number of work-items that run in lock step.
        half, peak, costs, loops, winograd: see the classes.
        sources: sources of the numbers, one phrase each.
        images: limits of images; None if buffers are faster.
        private_elements: most elements of a work-item's array that stays fast; GPUs spill arrays.
        max_alloc_bytes: the largest buffer.
        float64: whether it computes in float64.
        broadcasts: whether a multiply-add can repeat a scalar from memory over its lanes; otherwise
            a scalar needs a register and an operation.
        dot4: whether one instruction adds the products of four bytes to each lane of int32.
        fused: whether one instruction multiplies and adds with a single rounding.
        host_clang: whether its driver uses clang for the host's processor and runs work-groups as
            threads of the host, as PoCL does. Then kernels may use clang's built-ins, vector types
            of any alignment and prefetches, and an entry may be one launch. Otherwise they are
            plain OpenCL C, launched one by one.
    """

    target: str
    limits: Limits
    lanes: int
    vector_registers: int
    cores: int
    l1_bytes: int
    l2_bytes: int
    local_bytes: int
    group: int
    max_group: int
    subgroup: int
    half: Half
    peak: Peak
    sources: tuple[str, ...]
    images: Images | None = None
    private_elements: int = 1024
    max_alloc_bytes: int = 4 << 30
    float64: bool = True
    broadcasts: bool = False
    host_clang: bool = False
    dot4: bool = False
    fused: bool = False
    core_lanes: int = 0
    costs: Costs = field(default_factory=Costs)
    loops: LoopCosts = field(default_factory=LoopCosts)
    winograd: WinogradCosts = field(default_factory=WinogradCosts)

    def __post_init__(self) -> None:
        if self.lanes not in (1, 2, 4, 8, 16):
            raise SchedulerError(
                f"device {self.target}: expected 1, 2, 4, 8 or 16 lanes, found {self.lanes}"
            )
        if not 1 <= self.group <= self.max_group:
            raise SchedulerError(
                f"device {self.target}: expected a work-group of 1 to {self.max_group} items, "
                f"found {self.group}"
            )

    @property
    def is_simt(self) -> bool:
        """Whether neighboring work-items run in lock step, as on GPUs, not each on its own core."""
        return self.group > 1

    @property
    def exact_steps(self) -> bool:
        """Whether each operation gives the same bits as on all other devices with exact steps.

        On these, operators and roots round to nearest, and a multiply-add rounds once. Other
        drivers than PoCL may divide less exactly, and choose which operations they fuse.
        """
        return self.fused and self.host_clang

    def key(self) -> str:
        """Return a key for caches: all fields except the sources."""
        shown = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self)]
        return "; ".join(s for s in shown if not s.startswith("sources="))


_FULL_PROFILE: Final = "OpenCL 3.0, CL_DEVICE_MAX_PARAMETER_SIZE: at least 1024 bytes, full profile"
_EMBEDDED: Final = "OpenCL 1.2 section 10, CL_DEVICE_MAX_PARAMETER_SIZE: at least 256 bytes"
_METAL: Final = "Metal feature set tables: 31 entries in the buffer argument table of a kernel"
_LIMITS_ROWS: Final = (
    # Half of the 128 pointers that fit: PoCL 3.0 reports 1024 bytes, and each argument must be set
    # for each launch.
    Limits("cpu", 64, 1024, "PoCL 3.0 reports 1024 bytes; 64 is our choice"),
    Limits("gpu", 64, 1024, _FULL_PROFILE + "; 64 is our choice"),
    # Values of the full profile, which the driver reports; its own limits are unknown.
    Limits("adreno", 64, 1024, _FULL_PROFILE + "; not read from a device yet"),
    # Its table of buffers in global memory has 16 entries and is not checked (Mesa 25.0.7).
    Limits("freedreno", 16, 1024, "the seventeenth buffer ends the process"),
    Limits("embedded", 32, 256, _EMBEDDED),
    Limits("metal", 31, 4096, _METAL),
    Limits("webgpu", 8, 4096, "WebGPU: default of maxStorageBuffersPerShaderStage is 8"),
)
LIMITS: Final[dict[str, Limits]] = {row.target: row for row in _LIMITS_ROWS}

# OpenCL 1.2, CL_DEVICE_MAX_MEM_ALLOC_SIZE: at least a quarter of the memory, and at least this.
_LEAST_ALLOCATION: Final = 128 << 20

_CPU_SOURCES: Final = (
    "lanes, registers, broadcasts: Intel SDM, AVX-512: 32 registers of 512 bits, operands {1to16}",
    "caches: the least of processors with AVX-512, 32 KiB L1d and 1 MiB L2 per core (AMD Zen 4,",
    "Skylake; later ones of Intel have 48 KiB and 2 MiB), as lscpu reports",
    "cores: the machine that speed is judged on has 2",
    "peak: ceilings of modeld bench --roofline on 2 cores, 2026-11-21: independent multiply-adds,",
    "reads beyond the caches; launch: PoCL 3.0, one with work less the same work in one launch",
)
_GPU_SOURCES: Final = (
    "work-group, local memory: supported by current devices of NVIDIA, AMD and Intel",
    "lanes: 16 bytes, the widest load of one work-item; registers: NVIDIA's 255, in vectors of 4",
    "peak: none, the row stands for no device",
)
_ADRENO_SOURCES: Final = (
    "images, arguments, local memory, work-group: clinfo listings of Qualcomm's 6xx drivers",
    "half, float64: those drivers report cl_khr_fp16 and no cl_khr_fp64",
    "cores, caches: Snapdragon 845: 2 shader processors, 128 KiB of L2, 1 KiB of L1 for textures",
    "peak: published figures: 512 multiply-adds a clock at 710 MHz, twice as many in half,",
    "four channels of LPDDR4X-3733; launch: 0.65 ms were seen to enqueue the 123 of a vision model",
    "not one of these was read from a device here",
)

_CPU: Final = DeviceSpec(
    target="cpu",
    limits=LIMITS["cpu"],
    lanes=16,
    vector_registers=32,
    cores=2,
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    local_bytes=0,
    group=1,
    max_group=4096,
    subgroup=1,
    half=Half(storage=True, arithmetic=False),
    peak=Peak(gflops=390.0, gbytes=30.0, launch_us=20.0),
    sources=_CPU_SOURCES,
    broadcasts=True,
    host_clang=True,
    fused=True,
)
_OLDER_CPU: Final = replace(_CPU, vector_registers=16, l1_bytes=32 << 10, broadcasts=False)
_GPU: Final = DeviceSpec(
    target="gpu",
    limits=LIMITS["gpu"],
    lanes=4,
    vector_registers=48,
    cores=16,
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    local_bytes=32 << 10,
    group=64,
    max_group=256,
    subgroup=32,
    half=Half(storage=True, arithmetic=False),
    peak=Peak(),
    sources=_GPU_SOURCES,
    private_elements=0,
    max_alloc_bytes=_LEAST_ALLOCATION,
    # Each work-item repeats a nested reduction.
    costs=Costs(hoist_rows=64, max_nested_work=4096),
    # Neighbors share most of a window.
    loops=LoopCosts(window_rows=2, max_repeated=0.125),
)
_ADRENO: Final = replace(
    _GPU,
    target="adreno",
    limits=LIMITS["adreno"],
    vector_registers=32,
    cores=2,
    core_lanes=256,
    l1_bytes=1 << 10,
    l2_bytes=128 << 10,
    max_group=1024,
    subgroup=64,
    half=Half(storage=True, arithmetic=True),
    peak=Peak(gflops=727.0, half_gflops=1454.0, gbytes=29.8, launch_us=5.0),
    sources=_ADRENO_SOURCES,
    images=Images(16384, 16384, 128, 64, 64, sampler_less=True),
    float64=False,
    # Four lanes share a texel.
    costs=replace(_GPU.costs, tile_reuse=4),
)
_ROWS: Final = (
    _CPU,
    replace(
        _OLDER_CPU,
        target="cpu-avx2",
        limits=replace(LIMITS["cpu"], target="cpu-avx2"),
        lanes=8,
        l2_bytes=512 << 10,
        peak=Peak(gflops=195.0, gbytes=30.0, launch_us=20.0),
        sources=(
            "lanes, registers: Intel SDM, AVX2: 16 registers of 256 bits",
            "caches: those of AMD Zen; Haswell to Comet Lake have half of that L2, later ones more",
            "peak: half of row cpu; 188 to 203 were measured on 2 cores of AMD EPYC, 2026-11-22",
        ),
    ),
    replace(
        _OLDER_CPU,
        target="cpu-sse",
        fused=False,
        limits=replace(LIMITS["cpu"], target="cpu-sse"),
        lanes=4,
        l2_bytes=256 << 10,
        peak=Peak(gflops=90.0, gbytes=30.0, launch_us=20.0),
        sources=(
            "lanes, registers: Intel SDM, SSE2 in 64-bit mode: 16 registers of 128 bits, no",
            "multiply-add; caches: Intel Nehalem and Westmere, the last large ones without AVX",
            "peak: measured with kernels compiled for x86-64-v2 on 2 cores of AMD EPYC, 2026-11-22",
        ),
    ),
    replace(
        _OLDER_CPU,
        target="cpu-neon",
        limits=replace(LIMITS["cpu"], target="cpu-neon"),
        lanes=4,
        vector_registers=32,
        cores=4,
        l2_bytes=256 << 10,
        peak=Peak(),
        sources=(
            "lanes, registers: Arm ARM, Advanced SIMD of AArch64: 32 registers of 128 bits; a",
            "scalar of a multiply-add is a lane of a register, not memory: nothing is broadcast",
            "cores, caches: the least of Cortex-A72, A76, A78, Neoverse N1 as their manuals offer",
            "peak: none, no such CPU was at hand",
        ),
    ),
    _GPU,
    _ADRENO,
    replace(
        _ADRENO,
        target="freedreno",
        limits=LIMITS["freedreno"],
        half=Half(storage=True, arithmetic=False),
        images=Images(16384, 16384, 16, 32, 64, sampler_less=True),
        sources=(
            "as adreno, but for what Mesa's driver says: rusticl on freedreno of Mesa 25.0.7, on a",
            "device without hardware; sampler_less: its compiler's code for both kinds of reads",
        ),
    ),
)
SPECS: Final[dict[str, DeviceSpec]] = {row.target: row for row in _ROWS}
DEFAULT: Final = SPECS["cpu"]


def spec_of(target: str) -> DeviceSpec:
    """Return the row of a target; raise SchedulerError if there is none."""
    if target not in SPECS:
        raise SchedulerError(f"target {target!r}: expected one of {', '.join(SPECS)}")
    return SPECS[target]


def with_buffers(spec: DeviceSpec, buffers: int | None) -> DeviceSpec:
    """Return a spec with another number of buffers per kernel; None keeps the number.

    Raises:
        SchedulerError: a single operation needs more.
    """
    if buffers is None:
        return spec
    limits = spec.limits
    # A caller that asks for more than the row guarantees knows the device; raise the bytes to
    # match.
    space = max(limits.parameter_bytes, buffers * limits.pointer_bytes)
    return replace(spec, limits=replace(limits, buffers=buffers, parameter_bytes=space))
