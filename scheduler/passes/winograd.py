"""Replaces 3x3 convolutions by Winograd's F(2x2, 3x3) if that is clearly faster.

    sum over (c, i, j) of x[n, c, h+i, w+j] * g[o, c, i, j]    ->    winograd(x, U)
    sum(x * g) + sum(y * f)                                    ->    winograd(x, y, U and W)

U and W are the transformed weights g and f. A convolution is recognized by the indices of its sum,
whatever movement (reshape, pad, window and so on) produced them. Its inputs
and the last node of the arithmetic after it are stored with channels innermost, for all readers.
Inputs and outputs of the program are row-major and would need a copy, so convolutions next to them
are not replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from scheduler.device.spec import DeviceSpec
from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir import interp
from scheduler.ir.affine import depends, index_of, ranges_of
from scheduler.ir.build import like, new_weight, peel, reshaped
from scheduler.ir.custom_kernel import CustomKernel
from scheduler.ir.index import Atom, Ix, Predicate
from scheduler.ir.movement import MOVES, source_index
from scheduler.ir.node import Node, Readers, is_weight, toposort
from scheduler.ir.ops import ELEMENTWISE, Op
from scheduler.ir.rewrite import unchanged, with_sources
from scheduler.passes.winograd_kernel import (
    Array,
    Reference,
    Shape,
    choose_blocks,
    kernel_source,
    pays,
    transformed,
)

Worth = Callable[[Shape, DeviceSpec], bool]

# The maximum number of movement nodes between a convolution and the image it reads.
MAX_STEPS = 32
# The maximum number of elementwise nodes visited after a convolution.
MAX_CHAIN = 24
# Nodes with storage of their own.
_STORED = (Op.BUFFER, Op.CONTIGUOUS)
CHANNELS_LAST = (0, 2, 3, 1)
CHANNELS_FIRST = (0, 3, 1, 2)


@dataclass(frozen=True)
class _Convolution:
    """A sum of products that is a convolution, or the sum of several with equal output shapes."""

    inputs: tuple[Node, ...]  # (N, C, H, W) each
    weight: Array  # (outputs, depth, 3, 3); depth is the channels of all inputs, concatenated
    shape: Shape


def winograd(roots: Sequence[Node], spec: DeviceSpec, worth: Worth = pays) -> dict[Node, Node]:
    """Return old node -> new node, with convolutions replaced by Winograd's if worth it.

    `worth` decides this for convolutions that the kernel supports. The default selects those that
    are clearly faster.
    """
    order = toposort(roots)
    # Costs were measured with PoCL; other compilers may take minutes for such a kernel.
    if spec.is_simt or spec.images is not None or not spec.host_clang:
        return unchanged(order)
    graph = _Graph(Readers.of(order, roots), {n: i for i, n in enumerate(order)})
    found = _find_all(order, graph)
    ends = {n: graph.end_of(n, c) for n, c in found.items()}
    found = {
        n: c
        for n, c in found.items()
        # Outputs and program inputs are row-major, and would need a copy.
        if ends[n] is not None and not any(i.op is Op.BUFFER for i in c.inputs)
        if worth(c.shape, spec)
    }
    if not found:
        return unchanged(order)
    pinned = {node for n, c in found.items() for node in (*c.inputs, ends[n])}
    new: dict[Node, Node] = {}
    for node in order:
        made = found.get(node)
        value = with_sources(node, new) if made is None else _kernel(node, made, new, spec)
        new[node] = _pin(value) if node in pinned else value
    return new


# --- Recognizing ------------------------------------------------------------------------------


def _find_all(order: Sequence[Node], graph: _Graph) -> dict[Node, _Convolution]:
    """Return the convolutions by result node."""
    found: dict[Node, _Convolution] = {}
    for node in order:
        if node.dtype is not dt.float32:
            continue
        if node.op is Op.REDUCE:
            one = _convolution(node)
            if one is not None:
                found[node] = one
        # Residual sums and convolutions of concatenations are sums of convolutions here. One
        # kernel over all channels stores one result.
        elif node.op is Op.ADD and all(s in found for s in node.src):
            both = _added(found[node.src[0]], found[node.src[1]])
            alone = all(graph.readers.is_private(s) for s in node.src)
            if both is not None and alone and node.src[0] is not node.src[1]:
                for s in node.src:
                    del found[s]
                found[node] = both
    return found


def _added(a: _Convolution, b: _Convolution) -> _Convolution | None:
    channels = a.shape.channels + b.shape.channels
    shape = replace(a.shape, channels=channels)
    if shape != replace(b.shape, channels=channels):
        return None
    return _Convolution(a.inputs + b.inputs, np.concatenate([a.weight, b.weight], 1), shape)


def _convolution(node: Node) -> _Convolution | None:
    """Return the convolution that a sum computes, or None if the kernel does not support it."""
    product = node.src[0]
    if node.arg[0] is not Op.ADD or product.op is not Op.MUL:
        return None
    known = [is_weight(peel(s, MOVES)[1]) for s in product.src]
    if known.count(True) != 1:
        return None
    factor, weight = product.src[known.index(False)], product.src[known.index(True)]
    atoms = ranges_of(product.shape)
    source = _source(factor, atoms)
    axes = None if source is None else _axes(source, atoms, node.arg[1])
    if source is None or axes is None or _depends(weight, atoms, axes.pixels):
        return None
    # The image's axes are batch, channel, row and column, see `_source`.
    image, index = source.node, source.index
    shape = Shape(
        batch=image.shape[0],
        height=image.shape[2],
        width=image.shape[3],
        channels=(image.shape[1],),
        outputs=product.shape[axes.outputs],
        top=-index[2].const,
        left=-index[3].const,
        rows=product.shape[axes.down],
        columns=product.shape[axes.across],
    )
    return _Convolution((image,), _weights(weight, axes), shape)


@dataclass(frozen=True)
class _Source:
    """The node that a factor reads, the index, and the conditions that the index is inside it.

    Where a condition does not hold, the factor is 0.
    """

    node: Node
    index: tuple[Ix, ...]
    valid: Predicate


def _source(factor: Node, atoms: Sequence[Atom]) -> _Source | None:
    """Return the image whose windows a factor reads, below zero padding; None for other reads."""
    index = index_of(atoms)
    valid: Predicate = ()
    for _ in range(MAX_STEPS):
        zeros = factor.op is Op.PAD and factor.arg[1] == 0
        # Two terms on an axis are the pixel and the step in the window, so this is the image
        # itself and not a reshaped form of it.
        if not zeros and len(index) == 4 and all(len(i.terms) == 2 for i in index[2:]):
            return _Source(factor, index, valid)
        if factor.op not in MOVES or (factor.op is Op.PAD and not zeros):
            return None
        index, inside = source_index(factor, index)
        factor = factor.src[0]
        # Conditions accumulate through nested pads.
        for ix, low, high in inside:
            valid = ixs.conjoin(valid, ix, low, high)
    return None


@dataclass(frozen=True)
class _Axes:
    """The role of each axis of the product."""

    image: int | None  # the batch axis, None if there is one image only
    outputs: int  # output channels
    down: int  # rows of the result
    across: int  # columns of the result
    weights: tuple[int, int, int]  # the summed axes: input channels, rows and columns of the window

    @property
    def pixels(self) -> tuple[int, ...]:
        """The axes of the results of one output channel."""
        ends = (self.down, self.across)
        return ends if self.image is None else (self.image, *ends)


def _axes(source: _Source, atoms: Sequence[Atom], reduced: tuple[int, ...]) -> _Axes | None:
    """Return the role of each axis, or None if the factor does not read 3 x 3 windows."""
    axis = {r: a for a, r in enumerate(atoms) if r.size > 1}
    shape = source.node.shape
    bounds = [(source.index[a], 0, shape[a] - 1) for a in (2, 3)]
    if any(p not in bounds for p in source.valid):
        return None
    ends: list[tuple[int, int]] = []
    for ix, low, high in bounds:
        # Without a condition the index must be in bounds by itself, or it would leave the image.
        if (ix, low, high) not in source.valid and (ix.lo < low or ix.hi > high):
            return None
        # A factor of 1 on both terms rules out strides (pixel) and dilations (step).
        parts = [axis.get(atom) for atom, factor in ix.terms if factor == 1]
        moving = [a for a in parts if a is not None and a not in reduced]
        inner = [a for a in parts if a is not None and a in reduced]
        if len(moving) != 1 or len(inner) != 1 or atoms[inner[0]].size != 3:
            return None
        ends.append((moving[0], inner[0]))
    (down, i), (across, j) = ends
    channels = _plain(source.index[1], axis, atoms, shape[1])
    image = _plain(source.index[0], axis, atoms, shape[0])
    # A channel that is not summed means a depthwise convolution; the kernel has one group.
    if channels is None or channels not in reduced or (image is None and shape[0] > 1):
        return None
    summed = {a for a in reduced if atoms[a].size > 1}
    rest = [a for a in axis.values() if a not in summed and a not in (image, down, across)]
    ordered = [a for a in (image, *rest, down, across) if a is not None]
    # One axis remains, the output channels. Another order of axes would be another layout of the
    # result.
    if summed != {channels, i, j} or len(rest) != 1 or ordered != sorted(ordered):
        return None
    return _Axes(image, rest[0], down, across, (channels, i, j))


def _plain(ix: Ix, axis: dict[Atom, int], atoms: Sequence[Atom], size: int) -> int | None:
    """Return the axis that covers a whole axis of the image, element by element."""
    if ix.const or len(ix.terms) != 1 or ix.terms[0][1] != 1:
        return None
    found = axis.get(ix.terms[0][0])
    return found if found is not None and atoms[found].size == size else None


def _depends(weight: Node, atoms: Sequence[Atom], axes: Sequence[int]) -> bool:
    """Whether the weights differ along any of the axes."""
    return not depends(weight, index_of(atoms)).isdisjoint(atoms[a] for a in axes)


def _weights(weight: Node, axes: _Axes) -> Array:
    """Return the weights as (outputs, channels, 3, 3)."""
    kept = (axes.outputs, *axes.weights)
    # Slices along all other axes are equal.
    bounds = tuple((0, s if a in kept else 1, 1) for a, s in enumerate(weight.shape))
    values = interp.evaluate([like(weight, Op.SHRINK, (weight,), bounds)])[0]
    rest = tuple(a for a in range(len(weight.shape)) if a not in kept)
    return values.transpose(*kept, *rest).reshape([weight.shape[a] for a in kept])


# --- Building ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Graph:
    """The original graph: the readers and the position of each node."""

    readers: Readers
    position: dict[Node, int]

    def end_of(self, node: Node, made: _Convolution) -> Node | None:
        """Return the last elementwise node after a convolution that all paths from it pass through.

        The search continues past branches that rejoin, such as x * sigmoid(x). Returns None if that
        node is an output.
        """
        shape = made.shape.batch, made.shape.outputs, made.shape.rows, made.shape.columns
        inside: dict[Node, None] = {node: None}
        end: Node | None = None
        # Visiting the earliest reader first puts all branches inside before they rejoin.
        for _ in range(MAX_CHAIN):
            leaving = [n for n in inside if n in self.readers.roots or self._ahead(n, inside)]
            # A single leaving node means that all branches have rejoined. With another shape it
            # cannot be stored with channels innermost.
            if len(leaving) == 1 and leaving[0].shape == shape:
                end = leaving[0]
            ahead = [u for n in leaving for u in self._ahead(n, inside)]
            going = all(_continues(u, node) for u in ahead) and self.readers.roots.isdisjoint(
                leaving
            )
            if not ahead or not going:
                break
            inside[min(ahead, key=self.position.__getitem__)] = None
        return None if end in self.readers.roots else end

    def _ahead(self, node: Node, inside: dict[Node, None]) -> list[Node]:
        return [u for u in self.readers.users[node] if u not in inside]


def _continues(user: Node, node: Node) -> bool:
    """Whether a node is elementwise or a reshape with as many elements as the convolution."""
    return (user.op in ELEMENTWISE or user.op is Op.RESHAPE) and prod(user.shape) == prod(
        node.shape
    )


def _pin(value: Node) -> Node:
    """Return a value that is stored with its channels innermost."""
    if value.op is Op.PERMUTE and value.arg == CHANNELS_FIRST and value.src[0].op in _STORED:
        return value
    last = like(value, Op.PERMUTE, (value,), CHANNELS_LAST)
    stored = like(value, Op.CONTIGUOUS, (last,))
    return like(value, Op.PERMUTE, (stored,), CHANNELS_FIRST)


def _kernel(node: Node, made: _Convolution, new: dict[Node, Node], spec: DeviceSpec) -> Node:
    """Return the result of a convolution, in its original layout, from the custom kernel."""
    s = made.shape
    blocks = choose_blocks(s, spec)
    kernel = CustomKernel(
        "winograd",
        kernel_source(s, blocks),
        [((s.batch, s.rows, s.columns, s.outputs), dt.float32)],
        blocks.items(s),
        Reference(s),
        s.flops,
        blocks.lanes,
    )
    data = transformed(made.weight, blocks)
    weight = new_weight(data, dt.float32)
    inputs = tuple(new[i].src[0] for i in made.inputs)
    # The launch reads the storage that `_pin` created, with channels innermost.
    launch = like(node, Op.CUSTOM, (*inputs, weight), kernel)
    result = like(node, Op.RESULT, (launch,), 0)
    first = like(node, Op.PERMUTE, (result,), CHANNELS_FIRST)
    return reshaped(first, node.shape)
