"""The compile context: everything besides the graph that a compilation depends on.

It holds the target device, the flags, the numeric modes and the table of measured loops.

context = context_for(SPECS["adreno"], precision="fp16")       # with the environment's flags
context = CompileContext(spec=SPECS["adreno"])                 # without them
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

# fp16 storage is not the default; see `scheduler.passes.halves.precision`.
FP32: Final = "fp32"
# fp16 arithmetic: EXACT rounds after every operation, WIDE only where a value must be fp16.
EXACT: Final = "exact"
WIDE: Final = "wide"
HALVES: Final = (WIDE, EXACT)
# Order of float sums: FAST uses the fastest order of each device, STRICT one order on all devices.
FAST: Final = "fast"
STRICT: Final = "strict"
NUMERICS: Final = (FAST, STRICT)
# Flags that do not change the result of a compilation.
_DIAGNOSTIC_FLAGS: Final = frozenset({"debug", "viz", "schedule_cache"})


@dataclass(slots=True)
class Stages:
    """The snapshots of one graph, taken before the first pass and after each pass."""

    # name and roots of each stage; the input comes first
    graphs: list[tuple[str, tuple[Node, ...]]] = field(default_factory=list)
    origins: Origins = field(default_factory=Origins)  # ONNX names of the nodes of all stages

    def add(self, name: str, roots: Sequence[Node], origins: Origins) -> None:
        """Append a stage. Its roots keep the whole graph of that stage alive."""
        self.graphs.append((name, tuple(roots)))
        self.origins = origins


@dataclass(frozen=True, slots=True)
class CompileContext:
    """Everything besides the graph that a compilation depends on.

    Raises SchedulerError if `numerics` is unknown or the device does not support it.
    """

    spec: DeviceSpec = DEFAULT  # the kind of device, including the limits of its kernels
    # compiler flags, from the environment or from a caller
    flags: Flags = field(default_factory=Flags)
    precision: str = FP32  # "fp32", or "fp16" to store fp16
    halves: str = WIDE  # "wide" or "exact": when fp16 arithmetic rounds
    numerics: str = FAST  # "fast" or "strict": the order of float sums
    tuned: TunedTable = EMPTY  # measured loops, by kernel
    stages: Stages | None = None  # records the graph after each pass; None to record nothing

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
        """Whether results must be the same bytes on all devices."""
        return self.numerics == STRICT

    @property
    def limits(self) -> Limits:
        """The device's limits for one kernel."""
        return self.spec.limits

    def key(self) -> tuple[object, ...]:
        """Return a key of everything in the context that can change a result, for caches."""
        names = [f.name for f in fields(self.flags) if f.name not in _DIAGNOSTIC_FLAGS]
        decisive = tuple((name, getattr(self.flags, name)) for name in names)
        return (
            self.spec.key(),
            decisive,
            self.precision,
            self.halves,
            self.numerics,
            self.tuned.digest,
        )


# The context of the device row `cpu`, independent of the environment.
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
    """Return the context of a compilation, with the flags applied to its other fields.

    `flags.max_kernel_buffers` overrides the spec's number of buffers. If `tuned` is None, the table
    shipped for the target is used. If the flags disable tuning, no table is used. Raises
    SchedulerError if MAX_KERNEL_BUFFERS is not a number or is too small, or if the device does not
    support strict numerics.
    """
    flags = Flags.from_environment() if flags is None else flags
    if not flags.tuned:
        tuned = EMPTY
    elif tuned is None:
        tuned = shipped_table(spec.target)
    limited = with_buffers(spec, flags.max_kernel_buffers)
    stages = Stages() if flags.is_watched else None
    return CompileContext(limited, flags, precision, halves, numerics, tuned, stages)
