"""A CompileContext holds all that a compilation depends on beside its graph.

context = CompileContext(spec=SPECS["adreno"], precision="fp16")
schedule(graph, context)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.device.limits import Limits
from scheduler.device.spec import DEFAULT, DeviceSpec
from scheduler.device.tuned_table import EMPTY, TunedTable
from scheduler.flags import Flags
from scheduler.ir.node import Node

# Half storage is asked for by name, see `scheduler.passes.precision`.
FP32 = "fp32"


@dataclass(slots=True)
class Stages:
    """The graph on its way through the passes: name and roots of each stage, the input first."""

    graphs: list[tuple[str, tuple[Node, ...]]] = field(default_factory=list)

    def add(self, name: str, roots: Sequence[Node]) -> None:
        """Keep the roots of a stage; they keep their graph."""
        self.graphs.append((name, tuple(roots)))


@dataclass(frozen=True, slots=True)
class CompileContext:
    """What decides the result of a compilation beside the graph.

    Attributes:
        spec: the kind of device, with the limits of its kernels.
        flags: what the environment, or a caller, asks for.
        precision: "fp32", or "fp16" for half storage.
        tuned: loops that were measured, by kernel.
        stages: is told the graph after each pass; None where nobody looks.
    """

    spec: DeviceSpec = DEFAULT
    flags: Flags = field(default_factory=Flags)
    precision: str = FP32
    tuned: TunedTable = EMPTY
    stages: Stages | None = None

    @property
    def limits(self) -> Limits:
        """What one kernel may need on the device."""
        return self.spec.limits
