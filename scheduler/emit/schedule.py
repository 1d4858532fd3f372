"""Defines Schedule: the ordered kernels of one entry point, and the memory of its intermediates.

Intermediates in buffers share an arena. Those in images share an image if width, height and
type are equal and their lifetimes do not overlap:

    t0 128x64 [0, 1]   t1 128x64 [1, 2]   t2 128x64 [2, 3]     ->     images A: t0, t2   B: t1

OpenCL 1.2 has no images inside a buffer, and the extension that adds them
(`cl_khr_image2d_from_buffer`) is not used. So images are not in the arena.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from scheduler.context import FAST, Stages
from scheduler.device.spec import DeviceSpec
from scheduler.errors import SchedulerError
from scheduler.ir.node import Buffer, Node
from scheduler.ir.ops import Op
from scheduler.kernelize.kernel import Kernel, states_in_place
from scheduler.kernelize.memory_plan import Lifetime, aligned, live_bytes, plan_memory
from scheduler.loops.images import Image
from scheduler.lower import LoweredKernel
from scheduler.passes.halves.precision import PrecisionReport


@dataclass(frozen=True, slots=True)
class Arena:
    """The placement of intermediates in memory."""

    lives: dict[Node, Lifetime]  # lifetime of each intermediate, in order of writing
    storage: dict[Node, Node]  # node whose bytes each one uses: itself, unless computed in place
    offsets: dict[Node, int]  # bytes from the start of the arena, multiples of 256
    size: int  # bytes of the arena
    live: int  # most bytes alive during one launch; the rest of `size` is lost in gaps
    unplanned: int  # bytes if every intermediate had its own memory
    # intermediates in images, outside the arena
    images: dict[Node, Lifetime] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Schedule:
    """The kernels of one entry point, complete and lowered."""

    outputs: Mapping[str, Node]  # stored node of each output name
    inputs: tuple[Buffer, ...]  # input buffers in calling order, including unused ones
    lowered: tuple[LoweredKernel, ...]  # all kernels as OpenCL C, in running order
    spec: DeviceSpec  # the device row of the kernels
    precision: PrecisionReport | None = None  # report on fp16 storage; None if not requested
    halves: str = ""  # rounding of fp16 arithmetic, "wide" or "exact"; "" without fp16
    numerics: str = FAST  # order of float sums, "fast" or "strict"
    # the graph after each pass, if requested
    stages: Stages | None = field(default=None, repr=False)
    # reason for storing each node
    reasons: Mapping[Node, str] = field(default_factory=dict, repr=False)

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
        """Bytes read and written by all launches; per launch, each touched element counts once."""
        return sum(k.bytes_moved for k in self.launches)

    def arena(self) -> Arena:
        """Return lifetimes and places of the intermediates."""
        return plan_arena(self.lowered, frozenset(self.outputs.values()))

    @property
    def peak_bytes(self) -> int:
        """Bytes of the arena, in which intermediates reuse memory."""
        return self.arena().size

    @property
    def unplanned_bytes(self) -> int:
        """Bytes that intermediates would need without reuse."""
        return self.arena().unplanned


def image_nodes(kernels: Sequence[LoweredKernel]) -> dict[Node, Image]:
    """Return the intermediates that are images, in order of writing."""
    return {
        p.argument: p.image
        for kernel in kernels
        for p in kernel.code.parameters
        if p.written and p.image is not None and isinstance(p.argument, Node)
    }


def share_images(images: Mapping[Node, Image], lives: Mapping[Node, Lifetime]) -> dict[Node, Node]:
    """Return, for each image in order of writing, the image whose memory it uses, or itself."""
    owner: dict[Node, Node] = {}
    pool: dict[tuple[Image, str], list[tuple[Node, int]]] = {}
    for node, image in images.items():
        slots = pool.setdefault((image, node.dtype.name), [])
        free = next((i for i, (_, last) in enumerate(slots) if last < lives[node].first), None)
        if free is None:
            slots.append((node, lives[node].last))
            owner[node] = node
        else:
            owner[node] = slots[free][0]
            slots[free] = (slots[free][0], lives[node].last)
    return owner


def lifetimes(kernels: Sequence[Kernel], outputs: Collection[Node]) -> dict[Node, Lifetime]:
    """Return the lifetime of every stored node that is neither an output nor a BUFFER.

    Raises SchedulerError if an intermediate is never read, or is read before it is written (both
    are internal errors).
    """
    first: dict[Node, int] = {}
    last: dict[Node, int] = {}
    elsewhere = {*outputs, *states_in_place(kernels)}
    for i, kernel in enumerate(kernels):
        for node in kernel.reads:
            if node.op is not Op.BUFFER and node not in elsewhere:
                if node not in first:
                    raise SchedulerError(f"{node!r}: is read before it is computed")
                last[node] = i
        for target in kernel.targets:
            if target.op is not Op.BUFFER and target not in elsewhere:
                first[target] = i
        last.update(dict.fromkeys(kernel.scratch, i))
    for node in first:
        if node.op is Op.RESULT:  # a custom kernel writes all of its outputs
            last.setdefault(node, first[node])
    unread = next((n for n in first if n not in last), None)
    if unread is not None:
        raise SchedulerError(f"{unread!r}: is computed and never read")
    return {n: Lifetime(n.dtype.itemsize * prod(n.shape), first[n], last[n]) for n in first}


def plan_arena(kernels: Sequence[LoweredKernel], outputs: Collection[Node]) -> Arena:
    """Place the intermediates of an entry point; raise SchedulerError as `lifetimes` does."""
    every = lifetimes([k.kernel for k in kernels], outputs)
    pictures = image_nodes(kernels)
    lives = {node: life for node, life in every.items() if node not in pictures}
    storage: dict[Node, Node] = {}
    ends: dict[Node, int] = {}
    for kernel in kernels:
        for target in kernel.kernel.targets:
            if target in lives:
                taken = kernel.in_place_of
                storage[target] = target if taken is None else storage[taken]
                ends[storage[target]] = lives[target].last
    owners = [Lifetime(lives[n].size, lives[n].first, end) for n, end in ends.items()]
    plan = plan_memory(owners)
    offset_of = dict(zip(ends, plan.offsets, strict=True))
    return Arena(
        lives,
        storage,
        {node: offset_of[storage[node]] for node in lives},
        plan.arena_size,
        live_bytes(owners),
        sum(aligned(life.size) for life in lives.values()),
        {node: every[node] for node in pictures},
    )
