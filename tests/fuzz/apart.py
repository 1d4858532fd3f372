"""The same values with other kernels: ended elsewhere, or copied by kernels written by hand."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Final

from scheduler import CustomKernel, custom_kernel
from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, make, toposort
from scheduler.ir.ops import MOVEMENT, Op
from scheduler.ir.rewrite import with_sources
from scheduler.tensor.tensor import Tensor

# What is no computation: a kernel boundary behind it says nothing.
FREE: Final = {Op.BUFFER, Op.CONST, Op.IOTA, Op.ASSIGN, Op.CONTIGUOUS} | (
    MOVEMENT - {Op.CAT, Op.PAD}
)


def apart(tensors: Sequence[Tensor], *, only: Callable[[Node], bool] | None = None) -> list[Tensor]:
    """Return the same values with every operation in a kernel of its own: nothing is fused.

    Args:
        tensors: outputs and state writes.
        only: ends a kernel at these nodes instead of at all.
    """
    return _behind_each(tensors, lambda n: _stored(n) if only is None or only(n) else n)


def with_copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the same values: of three computed ones, one is copied through a slot, one without."""
    computed = 0

    def copied(node: Node) -> Node:
        nonlocal computed
        computed += 1
        return _copy(node, slot=computed % 3 == 1) if prod(node.shape) and computed % 3 else node

    return _behind_each(tensors, copied)


def rebuilt(tensors: Sequence[Tensor], change: Callable[[Node], Node]) -> list[Tensor]:
    """Return the same graph with every node changed, sources first."""
    new: dict[Node, Node] = {}
    for node in toposort([t.node for t in tensors]):
        new[node] = change(with_sources(node, new))
    return [Tensor.of(new[t.node]) for t in tensors]


def _behind_each(tensors: Sequence[Tensor], change: Callable[[Node], Node]) -> list[Tensor]:
    """Rebuild a graph with something behind each computed node."""
    return rebuilt(tensors, lambda node: node if node.op in FREE else change(node))


def _stored(node: Node) -> Node:
    return make(Op.CONTIGUOUS, node.dtype, (node,))


def _copy(node: Node, *, slot: bool) -> Node:
    """Return a value copied by a kernel written by hand, through its epilogue slot or without."""
    kind, size = node.dtype, prod(node.shape)
    if slot:
        value = "vload_half(i, in0)" if kind is dt.float16 else "in0[i]"
        source = f"int i = get_global_id(0); EPILOGUE({value}, i);"
    else:
        source = (
            f"const __global uchar* from = (const __global uchar*)in0;\n"
            f"__global uchar* to = (__global uchar*)out0;\n"
            f"for (int k = 0; k < {kind.itemsize}; k++) {{\n"
            f"  const int at = get_global_id(0) * {kind.itemsize} + k;\n  to[at] = from[at];\n}}"
        )
    kernel = CustomKernel("copy", source, [(node.shape, kind)], size, lambda v: v)
    (copied,) = custom_kernel(kernel, Tensor.of(node))
    return copied.node
