"""A CompileContext holds all that a compilation depends on beside its graph.

context = context_for(SPECS["adreno"], precision="fp16")       # with the environment's flags
context = CompileContext(spec=SPECS["adreno"])                 # without
schedule(outputs, context=context)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Final

from scheduler.device.spec import DEFAULT, DeviceSpec, Limits, with_buffers
from scheduler.device.tuned_table import EMPTY, TunedTable, shipped_table
from scheduler.errors import SchedulerError
from scheduler.flags import Flags
from scheduler.ir.node import Node
from scheduler.ir.origin import Origins

# Half storage is asked for by name, see `scheduler.passes.halves.precision`.
FP32: Final = "fp32"
# What arithmetic on halves means: rounded after every operation, or where a half has to be there.
EXACT: Final = "exact"
WIDE: Final = "wide"
HALVES: Final = (WIDE, EXACT)
# What sums of floats mean: whatever order is fast on a device, or one order on all of them.
FAST: Final = "fast"
STRICT: Final = "strict"
NUMERICS: Final = (FAST, STRICT)
# Flags that change what is said of a compilation, not its result.
_SHOWING: Final = frozenset({"debug", "viz", "schedule_cache"})


@dataclass(slots=True)
class Stages:
    """One graph on its way through the passes."""

    graphs: list[tuple[str, tuple[Node, ...]]] = field(default_factory=list)  # input first
    origins: Origins = field(default_factory=Origins)  # ONNX names of the nodes of all stages

    def add(self, name: str, roots: Sequence[Node], origins: Origins) -> None:
        """Keep the roots of a stage; they keep their graph."""
        self.graphs.append((name, tuple(roots)))
        self.origins = origins


@dataclass(frozen=True, slots=True)
class CompileContext:
    """All that decides a compilation beside the graph; raises SchedulerError for a misfit."""

    spec: DeviceSpec = DEFAULT  # the kind of device, with the limits of its kernels
    flags: Flags = field(default_factory=Flags)  # what the environment, or a caller, asks for
    precision: str = FP32  # "fp32", or "fp16" for half storage
    halves: str = WIDE  # "wide" or "exact": what arithmetic on halves means
    numerics: str = FAST  # "fast" or "strict": what sums of floats mean
    tuned: TunedTable = EMPTY  # loops that were measured, by kernel
    stages: Stages | None = None  # is told the graph after each pass; None where nobody looks

    def __post_init__(self) -> None:
        if self.numerics not in NUMERICS:
            raise SchedulerError(
                f"numerics {self.numerics!r}: expected one of {', '.join(NUMERICS)}"
            )
        if self.is_strict and not self.spec.exact_steps:
            raise SchedulerError(
                f"strict numerics on {self.spec.target}: expected a CPU with fused multiply-add, "
                "and PoCL; compile with --numerics fast"
            )

    @property
    def is_strict(self) -> bool:
        """Whether results are to be the same bytes on all devices."""
        return self.numerics == STRICT

    @property
    def limits(self) -> Limits:
        """What one kernel may need on the device."""
        return self.spec.limits

    def key(self) -> tuple[object, ...]:
        """Return what caches tell contexts apart by: all that may change a result."""
        names = [f.name for f in fields(self.flags) if f.name not in _SHOWING]
        decisive = tuple((name, getattr(self.flags, name)) for name in names)
        return (
            self.spec.key(),
            decisive,
            self.precision,
            self.halves,
            self.numerics,
            self.tuned.digest,
        )


# The row `cpu`, whatever the environment says.
DEFAULT_CONTEXT: Final = CompileContext()


def context_for(
    spec: DeviceSpec = DEFAULT,
    *,
    flags: Flags | None = None,
    precision: str = FP32,
    halves: str = WIDE,
    numerics: str = FAST,
    tuned: TunedTable | None = None,
) -> CompileContext:
    """Return the context of a compilation, with what the flags say in force.

    `flags.max_kernel_buffers` wins over the spec's number of buffers. Without `tuned` loops the
    table that ships for the target is used, unless flags forbid it. Raises SchedulerError if
    MAX_KERNEL_BUFFERS is no number or too small, or if the device has no strict numerics.
    """
    flags = Flags.from_environment() if flags is None else flags
    if not flags.tuned:
        tuned = EMPTY
    elif tuned is None:
        tuned = shipped_table(spec.target)
    limited = with_buffers(spec, flags.max_kernel_buffers)
    stages = Stages() if flags.is_watched else None
    return CompileContext(limited, flags, precision, halves, numerics, tuned, stages)
