"""KernelCode is a kernel as OpenCL C: its parameters, its body, its needs of a device."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.ir.node import Node
from scheduler.loops.images import Image
from scheduler.loops.pack import Argument


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel."""

    name: str  # as the body calls it
    type: str  # in C: "const __global float*", "__read_only image2d_t"
    argument: Argument  # what a launch binds to it
    written: bool  # whether the kernel writes it; it only reads the others
    image: Image | None = None  # the image that it is; None for a buffer


@dataclass(frozen=True, slots=True)
class Needs:
    """What a kernel needs of a device beside its arguments."""

    float64: bool = False  # whether it computes in float64
    # Whether its work-items share memory or wait for each other. Such a kernel is no function that
    # can be called for one work-item after the other.
    work_group: bool = False
    local_bytes: int = 0  # local memory of one work-group
    image_reads: int = 0  # texels that its text reads; one inside a loop counts once
    gated_reads: int = 0  # those of them that a condition may replace by a fill value
    image_writes: int = 0  # texels that its text writes

    def __add__(self, other: Needs) -> Needs:
        """Return what two parts of one kernel need together."""
        return Needs(
            self.float64 or other.float64,
            self.work_group or other.work_group,
            self.local_bytes + other.local_bytes,
            self.image_reads + other.image_reads,
            self.gated_reads + other.gated_reads,
            self.image_writes + other.image_writes,
        )


@dataclass(frozen=True, slots=True)
class KernelCode:
    """The code of a kernel; its name and attributes are up to the program that it is put into."""

    parameters: tuple[Parameter, ...]  # in order; the written ones come first
    body: str  # "{ statements }" and a line end
    items: int  # work-items that have something to do
    lanes: tuple[int, ...]  # vector widths used
    needs: Needs  # what it needs of a device
    group: int = 1  # work-items of a work-group; the launch is rounded up to whole ones

    @property
    def declarations(self) -> str:
        """The parameters in C, separated by commas."""
        return ", ".join(f"{p.type} {p.name}" for p in self.parameters)

    @property
    def text(self) -> str:
        """The kernel in C, without what stands before its parameters."""
        return f"({self.declarations})\n{self.body}"

    def definition(self, name: str) -> str:
        """Return the kernel in C under a name, for launches of its work-groups."""
        attribute = f"__attribute__((reqd_work_group_size({self.group}, 1, 1)))"
        return f"__kernel {attribute}\nvoid {name}{self.text}"

    @property
    def launched(self) -> int:
        """Work-items of a launch: whole work-groups; the kernel ends those beyond its own."""
        return -(-self.items // self.group) * self.group

    @property
    def storage(self) -> tuple[Node, ...]:
        """Nodes whose storage the kernel writes, in parameter order."""
        written = (p.argument for p in self.parameters if p.written)
        return tuple(node for node in written if isinstance(node, Node))

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """What is bound after the storage, in parameter order."""
        return tuple(p.argument for p in self.parameters if not p.written)

    @property
    def is_callable(self) -> bool:
        """Whether the body can also be that of a function, called for one work-item at a time."""
        return not self.needs.work_group and all(p.image is None for p in self.parameters)
