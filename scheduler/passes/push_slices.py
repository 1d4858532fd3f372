"""Moves slices towards the inputs, so that only elements that are read are computed.

shrink(gelu(x @ w + b), last row)     ->     gelu(shrink(x, last row) @ w + b)

A box is a range of indices for each axis of a node. The pass first computes which box of each node
is read, from the outputs down, and then rebuilds the graph with nodes of that size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from scheduler.ir.build import spread
from scheduler.ir.movement import MOVES, Box, cut, hull, rebuild, sizes, source_box, whole
from scheduler.ir.node import Node, const, toposort
from scheduler.ir.ops import ELEMENTWISE, Op
from scheduler.ir.rewrite import remake

# A node keeps its shape if more than this share is read: 128 rows split evenly, 127 do not.
KEEP_SHARE = 0.75

# Nodes that are always computed in full.
FIXED = frozenset({Op.BUFFER, Op.CONST, Op.IOTA, Op.ASSIGN, Op.CUSTOM, Op.RESULT})


def push_slices(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node without unread elements; the roots keep their shapes."""
    order = toposort(roots)
    if any(0 in n.shape for n in order):
        return {r: r for r in roots}  # a box cannot be empty; such graphs are trivial
    reads = _needed(order, roots)
    if not reads.parts:
        return {r: r for r in roots}
    graph = _Sliced(reads.boxes)
    for node in order:
        if node in graph.need:
            graph.new[node] = _part(node, graph)
    ends = {r: _view(r, whole(r.shape), graph) for r in roots}
    new = graph.moved | graph.new | ends
    return {node: new[node] for node in order if node in new}


@dataclass(frozen=True, slots=True)
class _Sliced:
    """A graph restricted to the elements that are read."""

    need: dict[Node, Box]  # the needed box of each node other than movement
    new: dict[Node, Node] = field(default_factory=dict)  # each node -> its needed box as a new node
    # movement -> a box of its result as a new node
    moved: dict[Node, Node] = field(default_factory=dict)


@dataclass(slots=True)
class _Reads:
    """The elements of a graph that are read."""

    # the box that is read of each node other than movement
    boxes: dict[Node, Box] = field(default_factory=dict)
    moved: set[Node] = field(default_factory=set)  # movement nodes that are already read in full
    parts: bool = False  # whether any element is not read


def _needed(order: Sequence[Node], roots: Sequence[Node]) -> _Reads:
    """Return the box that is read of each node other than movement."""
    reads = _Reads()
    for root in roots:
        _request(root, whole(root.shape), reads)
    for node in reversed(order):
        box = reads.boxes.get(node)
        if box is None:
            continue  # movement, or a node without readers
        full = whole(node.shape)
        if box != full:
            kept = prod(sizes(box)) > KEEP_SHARE * prod(node.shape)
            box = reads.boxes[node] = full if kept or node.op in FIXED else box
            reads.parts = reads.parts or box != full
        for source, part in zip(node.src, _source_boxes(node, box), strict=True):
            if part is not None:
                _request(source, part, reads)
    return reads


def _request(node: Node, box: Box, reads: _Reads) -> None:
    """Record that a box of a node is read, as a box of the node below its movement."""
    while node.op in MOVES:
        if node in reads.moved:
            return
        if box == whole(node.shape):
            reads.moved.add(node)
        below = source_box(node, box)
        if below is None:
            reads.parts = True
            return
        node, box = node.src[0], below
    reads.boxes[node] = hull(reads.boxes.get(node), box)


def _source_boxes(node: Node, box: Box) -> list[Box | None]:
    """Return the box of each source that a box of a node depends on; None if it reads nothing."""
    if node.op in ELEMENTWISE or node.op is Op.CONTIGUOUS:
        return [box] * len(node.src)
    if node.op is Op.WORDS:
        # words are read whole, along all of the last axis
        return [(*box[:-1], (0, node.src[0].shape[-1]))]
    if node.op is Op.REDUCE:
        shape = node.src[0].shape
        return [tuple((0, s) if a in node.arg[1] else box[a] for a, s in enumerate(shape))]
    if node.op is Op.GATHER:
        data, index = node.src
        axis, end = node.arg, node.arg + len(index.shape)
        return [(*box[:axis], (0, data.shape[axis]), *box[end:]), box[axis:end]]
    if node.op is Op.CAT:
        return _cat_boxes(node, box)
    return [whole(s.shape) for s in node.src]


def _cat_boxes(node: Node, box: Box) -> list[Box | None]:
    axis, at, found = node.arg, 0, list[Box | None]()
    for source in node.src:
        size = source.shape[axis]
        low, high = max(box[axis][0] - at, 0), min(box[axis][1] - at, size)
        found.append((*box[:axis], (low, high), *box[axis + 1 :]) if low < high else None)
        at += size
    return found


def _part(node: Node, graph: _Sliced) -> Node:
    """Return the needed box of a node as a new node."""
    if node.op is Op.WORDS:
        # Words cover the bytes as stored; their readers slice the words.
        graph.need[node] = (*graph.need[node.src[0]][:-1], (0, node.shape[-1]))
    box = graph.need[node]
    if box == whole(node.shape) and all(graph.new.get(s) is s for s in node.src):
        return node  # complete, and its sources are unchanged and not movement
    src = tuple(
        _view(source, part, graph)
        for source, part in zip(node.src, _source_boxes(node, box), strict=True)
        if part is not None
    )
    if src == node.src:
        return node
    if node.op is Op.CAT and len(src) == 1:
        return src[0]
    return remake(node, src)


def _view(node: Node, box: Box, graph: _Sliced) -> Node:
    """Return a box of any node, built on the new form of the node below its movement."""
    chain: list[tuple[Node, Box]] = []
    below: Box | None = box
    while node.op in MOVES and below is not None:
        chain.append((node, below))
        below = source_box(node, below)
        node = node.src[0]
    if below is None:
        top, part = chain.pop()
        value = spread(const(top.arg[1], top.dtype), sizes(part))
    else:
        if graph.new[node] is node:
            for i, (move, part) in enumerate(chain):
                if part == whole(move.shape):
                    node, below, chain = move, part, chain[:i]
                    break
        have = graph.need.get(node, below)
        value = cut(graph.new.get(node, node), have, below)
    for move, part in reversed(chain):
        moved = rebuild(move, part, value)
        if moved is not value:
            graph.moved[move] = value = moved
    return value
