"""Schedule: the kernels that one entry point runs, in order, with their text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.context import FAST, Stages
from scheduler.device.spec import DeviceSpec
from scheduler.emit.arena import Arena, plan_arena
from scheduler.ir.node import Buffer, Node
from scheduler.kernelize.kernel import Kernel
from scheduler.lower import LoweredKernel
from scheduler.passes.halves.precision import PrecisionReport


@dataclass(frozen=True, eq=False)
class Schedule:
    """What one entry point runs."""

    outputs: Mapping[str, Node]  # stored node of each output name
    inputs: tuple[Buffer, ...]  # input buffers in calling order, read by a kernel or not
    lowered: tuple[LoweredKernel, ...]  # all kernels as OpenCL text, in running order
    spec: DeviceSpec  # the device that the kernels are for
    precision: PrecisionReport | None = None  # of half storage; None where nothing was asked for
    halves: str = ""  # what arithmetic on halves means, "wide" or "exact"; "" without halves
    numerics: str = FAST  # what sums of floats mean, "fast" or "strict"
    stages: Stages | None = field(default=None, repr=False)  # after each pass, if asked for
    reasons: Mapping[Node, str] = field(default_factory=dict, repr=False)  # why each node is stored

    @property
    def launches(self) -> list[Kernel]:
        """All kernels in running order."""
        return [lowered.kernel for lowered in self.lowered]

    @property
    def kernels(self) -> list[Kernel]:
        """The launches that compute something."""
        return [k for k in self.launches if not k.is_copy]

    @property
    def copies(self) -> list[Kernel]:
        """The launches that only move a stored value: commits of states, copied outputs."""
        return [k for k in self.launches if k.is_copy]

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written by all launches: of each buffer what is touched, once a launch."""
        return sum(k.bytes_moved for k in self.launches)

    def arena(self) -> Arena:
        """Return lifetimes and places of the intermediates."""
        return plan_arena(self.lowered, frozenset(self.outputs.values()))

    @property
    def peak_bytes(self) -> int:
        """Bytes of the arena: what intermediates take when memory is used again."""
        return self.arena().size

    @property
    def unplanned_bytes(self) -> int:
        """Bytes that intermediates would take if each had its own."""
        return self.arena().unplanned
