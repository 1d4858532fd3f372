"""Defines FusionGraph: the kernels of an entry and their dependencies while pairs are fused.

A group is one kernel, or several that were fused. `scheduler/kernelize/fuse.py` asks the graph
which groups may become one, tries fusions on copies and compares the peaks of live memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from scheduler.device.spec import DeviceSpec
from scheduler.ir.node import Node
from scheduler.ir.ops import Op
from scheduler.kernelize.body import Body
from scheduler.kernelize.kernel import Kernel, states_in_place
from scheduler.kernelize.order import Step, best_order, estimated_peak


@dataclass(frozen=True, slots=True)
class Group:
    """Kernels fused into one."""

    kernel: Kernel  # the fused kernel
    step: Step  # its edges; `step.after` holds numbers of groups
    position: int  # the place of its first kernel in creation order


@dataclass(frozen=True, slots=True)
class Tried:
    """Cached results for pairs of kernels; copies of a graph try the same pairs again."""

    # Merged loop nests; None if the pair should not become one nest.
    nests: dict[tuple[Kernel, Kernel], Body | None] = field(default_factory=dict)
    # Fused kernels. The third part of the key is the stored nodes of one nest, None for side by
    # side.
    kernels: dict[tuple[Kernel, Kernel, tuple[Node, ...] | None], Kernel] = field(
        default_factory=dict
    )


class FusionGraph:
    """Kernels with their edges.

    Attributes:
        groups: the groups by number, without those merged into others.
        sizes: arena bytes of each written node; a node that is missing here must stay stored.
        tried: results shared by all copies of the graph.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        steps: Sequence[Step],
        sizes: Mapping[Node, int],
        spec: DeviceSpec,
    ) -> None:
        both = enumerate(zip(kernels, steps, strict=True))
        self.groups = {i: Group(k, s, i) for i, (k, s) in both}
        self.sizes, self.spec = sizes, spec
        self.tried = Tried()
        self._merged: dict[int, int] = {}
        self._in_place = states_in_place(kernels)
        self._producer = {t: i for i, s in enumerate(steps) for t in s.writes}
        self._readers: dict[Node, frozenset[int]] = {}
        for i, kernel in enumerate(kernels):
            for node in kernel.reads:
                self._readers[node] = self._readers.get(node, frozenset()) | {i}
        self._ancestors = self._closure(best_order(steps, {}))
        self._peak: int | None = None

    def copy(self) -> FusionGraph:
        """Return a graph that can change without changing this one."""
        other = copy(self)
        other.groups, other._merged = dict(self.groups), dict(self._merged)
        other._producer, other._readers = dict(self._producer), dict(self._readers)
        other._ancestors = list(self._ancestors)
        return other

    def current_group(self, i: int) -> int:
        """Return the group that now contains a group."""
        while i in self._merged:
            i = self._merged[i]
        return i

    def position(self, i: int) -> int:
        """Return the place of a group in creation order."""
        return self.groups[i].position

    def touching(self) -> Iterator[list[int]]:
        """Yield, for each buffer that several groups read or write, these groups in order."""
        for node, readers in self._readers.items():
            writer = self._producer.get(node)
            groups = readers if writer is None else readers | {writer}
            if len(groups) > 1:
                yield sorted(groups)

    def is_small(self, kernel: Kernel) -> bool:
        """Whether each loop nest takes less time than a launch; custom kernels are never small."""
        return kernel.custom is None and kernel.work <= self.spec.costs.launch

    def small(self) -> list[int]:
        """Return the groups with small kernels, in creation order."""
        found = [i for i, g in self.groups.items() if self.is_small(g.kernel)]
        return sorted(found, key=self.position)

    def ordered(self, i: int, j: int) -> tuple[int, int] | None:
        """Return two groups in running order; None if another group must run between them."""
        first, second = (j, i) if self._ancestors[i] >> j & 1 else (i, j)
        if any(self._ancestors[p] >> first & 1 for p in self._before(second) if p != first):
            return None
        return first, second

    def overwrites(self, first: int, second: int) -> bool:
        """Whether the second group overwrites a value that the first reads."""
        return first in self.groups[second].step.after

    def state_of(self, target: Node) -> Node | None:
        """Return the state BUFFER that a store to a target changes; None if it changes none."""
        return target if target.op is Op.BUFFER else self._in_place.get(target)

    def is_local(self, target: Node, first: int, second: int) -> bool:
        """Whether a stored value is in the arena and only these two groups read it."""
        return target in self.sizes and self._readers.get(target, frozenset()) <= {first, second}

    def accept(self, first: int, second: int, kernel: Kernel) -> None:
        """Replace two groups by one with the fused kernel."""
        a, b = self.groups[first], self.groups.pop(second)
        both = frozenset({first, second})
        after = (a.step.after | b.step.after) - both
        writes = tuple(t for t in kernel.targets if t.op is not Op.BUFFER)
        names = dict.fromkeys((a.step.name, b.step.name))
        step = Step(", ".join(names), writes, kernel.reads, after=after)
        self.groups[first] = Group(kernel, step, min(a.position, b.position))
        self._merged[second] = first
        for node in dict.fromkeys((*a.kernel.reads, *b.kernel.reads)):
            self._readers[node] -= both
        for node in kernel.reads:
            self._readers[node] |= {first}
        self._producer.update(dict.fromkeys(writes, first))
        gone, now = 1 << second, 1 << first
        merged = (self._ancestors[first] | self._ancestors[second]) & ~gone & ~now
        self._ancestors[first] = merged
        for i, group in self.groups.items():
            if self._ancestors[i] & (gone | now):
                self._ancestors[i] = (self._ancestors[i] | merged | now) & ~gone
            if second in group.step.after:
                moved = group.step.after - {second} | {first}
                self.groups[i] = replace(group, step=replace(group.step, after=moved))
        self._peak = None

    def peak(self) -> int:
        """Return the most bytes alive at a time in the best known order."""
        if self._peak is None:
            _, steps = self.result()
            self._peak = estimated_peak(best_order(steps, self.sizes), steps, self.sizes)
        return self._peak

    def result(self) -> tuple[list[Kernel], list[Step]]:
        """Return the remaining kernels and their steps, renumbered in creation order."""
        left = sorted(self.groups.values(), key=lambda g: g.position)
        number = {id(g): i for i, g in enumerate(left)}
        of = {i: number[id(g)] for i, g in self.groups.items()}
        steps = [replace(g.step, after=frozenset(of[n] for n in g.step.after)) for g in left]
        return [g.kernel for g in left], steps

    def _before(self, i: int) -> set[int]:
        group = self.groups[i]
        found = {self._producer[r] for r in group.kernel.reads if r in self._producer}
        return (found | group.step.after) - {i}

    def _closure(self, order: Sequence[int]) -> list[int]:
        ancestors = [0] * len(order)
        for i in order:
            for j in self._before(i):
                ancestors[i] |= ancestors[j] | 1 << j
        return ancestors
