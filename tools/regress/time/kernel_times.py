"""Which kernels became slower: launches of two programs, matched by the ONNX nodes they compute.

Two compilations may cut a model into other kernels. What computes the same nodes is one piece of
work on both sides, and of the rest what shares a node, directly or by way of others; of such pieces
the times can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

# Of what all kernels lost together: what one has to have lost to be named.
NAMED_SHARE: Final = 0.1
MOST_NAMED: Final = 5
SHOWN_NODES: Final = 4


class LaunchTime(NamedTuple):
    """One launch."""

    kernel: str
    nodes: tuple[str, ...]  # ONNX nodes that it computes, or parts of the frame program
    ms: float  # what it takes


@dataclass(frozen=True, slots=True)
class KernelChange:
    """One piece of work on both sides."""

    kernels: tuple[str, ...]  # that do it now, in order of launches
    kernels_before: tuple[str, ...]  # that did it
    nodes: tuple[str, ...]  # ONNX nodes of it, of both sides
    before_ms: float  # what it took; 0 where there was no such work
    now_ms: float  # what it takes; 0 where it is gone

    @property
    def names(self) -> tuple[str, ...]:
        """The kernels; those of before, where the work is gone."""
        return self.kernels or self.kernels_before

    @property
    def lost_ms(self) -> float:
        """By how much it is slower."""
        return self.now_ms - self.before_ms

    @property
    def text(self) -> str:
        """One line."""
        more = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        nodes = ", ".join(self.nodes[:SHOWN_NODES]) or "none"
        if len(self.nodes) > SHOWN_NODES:
            nodes += f" and {len(self.nodes) - SHOWN_NODES} more"
        times = f"{self.before_ms:.3f} ms before, {self.now_ms:.3f} ms now"
        return f"{self.names[0]}{more}, nodes {nodes}: {times}"


def compare_kernels(
    before: Sequence[LaunchTime], now: Sequence[LaunchTime]
) -> tuple[KernelChange, ...]:
    """Return the pieces of work of two programs, those of one kernel joined; most lost first."""
    groups = Groups()
    # What computes the same nodes on both sides is a piece by itself.
    exact = {frozenset(_names(one)) for one in before} & {frozenset(_names(one)) for one in now}
    for launch in (*before, *now):
        if frozenset(_names(launch)) not in exact:
            groups.join(_names(launch))
    pieces: dict[object, tuple[list[LaunchTime], list[LaunchTime]]] = {}
    for side, launches in enumerate((before, now)):
        for launch in launches:
            nodes = frozenset(_names(launch))
            piece = nodes if nodes in exact else groups.root(_names(launch)[0])
            pieces.setdefault(piece, ([], []))[side].append(launch)
    # One kernel may do many pieces, each of which has lost little.
    by_kernels: dict[tuple[str, ...], tuple[list[LaunchTime], list[LaunchTime]]] = {}
    for old, new in pieces.values():
        kernels = tuple(dict.fromkeys(one.kernel for one in new or old))
        both = by_kernels.setdefault(kernels, ([], []))
        both[0].extend(old)
        both[1].extend(new)
    found = [
        KernelChange(
            tuple(dict.fromkeys(one.kernel for one in new)),
            tuple(dict.fromkeys(one.kernel for one in old)),
            tuple(dict.fromkeys(node for one in (*new, *old) for node in one.nodes)),
            sum(one.ms for one in old),
            sum(one.ms for one in new),
        )
        for old, new in by_kernels.values()
    ]
    return tuple(sorted(found, key=lambda change: -change.lost_ms))


def slower_kernels(changes: Sequence[KernelChange], lost_ms: float) -> list[KernelChange]:
    """Return the pieces of work that became slower; none where what a run lost lies elsewhere.

    `changes`: as `compare_kernels` sorts them. `lost_ms`: what a whole run lost.
    """
    # Times of launches scatter, so less than half of the loss is none of theirs.
    if sum(one.lost_ms for one in changes) < lost_ms / 2.0:
        return []
    lost = sum(one.lost_ms for one in changes if one.lost_ms > 0.0)
    named = [one for one in changes if one.lost_ms >= NAMED_SHARE * lost][:MOST_NAMED]
    return named or list(changes[:1])


def describe_kernels(changes: Sequence[KernelChange], lost_ms: float) -> list[str]:
    """Return lines that say which kernels are slower, or that none is; takes the same."""
    named = slower_kernels(changes, lost_ms)
    if named:
        return [f"slower kernel: {change.text}" for change in named]
    before, now = (sum(getattr(one, name) for one in changes) for name in ("before_ms", "now_ms"))
    text = (
        f"kernels one by one: {before:.3f} ms before, {now:.3f} ms now, of {lost_ms:.3f} ms "
        "that a run lost: what runs them is slower (runtime, driver or megakernel)"
    )
    return [text]


def _names(launch: LaunchTime) -> Sequence[str]:
    return launch.nodes or (launch.kernel,)


class Groups:
    """Names that belong together."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def root(self, name: str) -> str:
        """Return the name that stands for a group."""
        while (parent := self._parents.setdefault(name, name)) != name:
            name = parent
        return name

    def join(self, names: Iterable[str]) -> None:
        """Make one group of the groups of all these."""
        roots = [self.root(name) for name in names]
        for root in roots:
            self._parents[self.root(root)] = self.root(roots[0])
