"""KernelCode is a kernel as OpenCL C: its parameters, its body, its needs of a device."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.ir.node import Node
from scheduler.loops.images import Image
from scheduler.loops.pack import Argument


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel.

    Attributes:
        name: as the body calls it.
        type: in C: "const __global float*", "__read_only image2d_t".
        argument: what a launch binds to it.
        written: whether the kernel writes it; it only reads the others.
        image: the image that it is; None for a buffer.
    """

    name: str
    type: str
    argument: Argument
    written: bool
    image: Image | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """What a kernel needs of a device beside its arguments.

    Attributes:
        float64: whether it computes in float64.
        work_group: whether its work-items share memory or wait for each other. Such a kernel is no
            function that can be called for one work-item after the other.
        local_bytes: local memory of one work-group.
        image_reads: texels that its text reads; one inside a loop counts once.
        gated_reads: those of them that a condition may replace by a fill value.
        image_writes: texels that its text writes.
    """

    float64: bool = False
    work_group: bool = False
    local_bytes: int = 0
    image_reads: int = 0
    gated_reads: int = 0
    image_writes: int = 0

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
    """The code of a kernel; its name and attributes are up to the program that it is put into.

    Attributes:
        parameters: in order; the written ones come first.
        body: "{ statements }" and a line end.
        items: work-items that have something to do.
        lanes: vector widths used.
        needs: what it needs of a device.
    """

    parameters: tuple[Parameter, ...]
    body: str
    items: int
    lanes: tuple[int, ...]
    needs: Needs

    @property
    def declarations(self) -> str:
        """The parameters in C, separated by commas."""
        return ", ".join(f"{p.type} {p.name}" for p in self.parameters)

    @property
    def text(self) -> str:
        """The kernel in C, without what stands before its parameters."""
        return f"({self.declarations})\n{self.body}"

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
