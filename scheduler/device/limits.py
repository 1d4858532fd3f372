"""Limits of one kernel on each kind of device, as a table of data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scheduler.errors import SchedulerError

# The result and the three sources of WHERE: what a single operation may need.
MIN_BUFFERS: Final = 4
# Compile time grows faster than operations do; the largest of the example models has about 60.
MAX_OPERATIONS: Final = 512


@dataclass(frozen=True, slots=True)
class Limits:
    """What one kernel may need; raises SchedulerError if one operation needs more."""

    target: str  # name of the row
    buffers: int  # buffers that are arguments; results count
    parameter_bytes: int  # bytes of all arguments; each of ours is a pointer
    operations: int  # fused elementwise operations
    source: str  # where the numbers come from
    pointer_bytes: int = 8  # width of a pointer argument

    def __post_init__(self) -> None:
        if self.max_buffers < MIN_BUFFERS or self.operations < 1:
            raise SchedulerError(
                f"limits of {self.target}: expected at least {MIN_BUFFERS} buffers and one "
                f"operation per kernel, found {self.max_buffers} and {self.operations}"
            )

    @property
    def max_buffers(self) -> int:
        """Buffers per kernel that both the count and the bytes allow; results count."""
        return min(self.buffers, self.parameter_bytes // self.pointer_bytes)

    def fits(self, reads: int, writes: int = 1) -> bool:
        """Whether a kernel may read and write this many distinct buffers."""
        return reads + writes <= self.max_buffers


_FULL_PROFILE: Final = "OpenCL 3.0, CL_DEVICE_MAX_PARAMETER_SIZE: at least 1024 bytes, full profile"
_ROWS: Final = (
    # Half of the 128 pointers that fit: PoCL 3.0 reports 1024 bytes, and longer argument lists
    # only cost there (each is set for each launch).
    Limits("cpu", 64, 1024, MAX_OPERATIONS, "PoCL 3.0 reports 1024 bytes; 64 is our choice"),
    Limits("gpu", 64, 1024, MAX_OPERATIONS, _FULL_PROFILE + "; 64 is our choice"),
    # No figure of its own until one is read from a device: it reports the full profile.
    Limits("adreno", 64, 1024, MAX_OPERATIONS, _FULL_PROFILE + "; not read from a device yet"),
    # Its table of buffers in global memory has 16 places and no check (Mesa 25.0.7).
    Limits("freedreno", 16, 1024, MAX_OPERATIONS, "the seventeenth buffer ends the process"),
    Limits(
        "embedded",
        32,
        256,
        MAX_OPERATIONS,
        "OpenCL 1.2 section 10, CL_DEVICE_MAX_PARAMETER_SIZE: at least 256 bytes, embedded profile",
    ),
    Limits(
        "metal",
        31,
        4096,
        MAX_OPERATIONS,
        "Metal feature set tables: 31 entries in the buffer argument table of a kernel",
    ),
    Limits(
        "webgpu",
        8,
        4096,
        MAX_OPERATIONS,
        "WebGPU: default of maxStorageBuffersPerShaderStage is 8",
    ),
)
TABLE: Final[dict[str, Limits]] = {row.target: row for row in _ROWS}
