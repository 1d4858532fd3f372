"""Random graphs give the same with hand-written copies of their values in between."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import pytest
from hypothesis import given, settings

from scheduler import CustomKernel, custom_kernel
from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import MOVEMENT, Op
from scheduler.ir.rewrite import remake
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.kernelize.test_random_graphs import check_on_device
from tests.scheduler.random_graphs import Graph, told_of
from tests.scheduler.random_motifs import build, graphs
from tests.scheduler.support.memory_check import memory_faults
from tests.scheduler.support.programs import emitted

FREE = {Op.BUFFER, Op.CONST, Op.IOTA, Op.ASSIGN} | (MOVEMENT - {Op.CAT, Op.PAD})


def copy_of(node: Node, *, slot: bool) -> Node:
    """Return a value copied by a kernel written by hand."""
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


def with_copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the same values: of what is computed, one is copied through a slot, one otherwise."""
    new: dict[Node, Node] = {}
    computed = 0
    for node in toposort([t.node for t in tensors]):
        made = remake(node, tuple(new[s] for s in node.src)) if node.src else node
        if node.op not in FREE:
            computed += 1
            if prod(node.shape) and computed % 3:
                made = copy_of(made, slot=computed % 3 == 1)
        new[node] = made
    return [Tensor.of(new[t.node]) for t in tensors]


@pytest.mark.opencl
@settings(max_examples=16)
@given(graphs(8))
def test_copies_by_hand_change_no_value(graph: Graph) -> None:
    tensors = with_copies([*graph.tensors.values(), *graph.assigns])
    count = len(graph.outputs)
    with told_of(graph):
        check_on_device(graph, tensors[:count], tensors[count:])


@settings(max_examples=60)
@given(graphs(10))
def test_no_copy_reads_memory_that_was_overwritten(graph: Graph) -> None:
    tensors = with_copies([*graph.tensors.values(), *graph.assigns])
    count = len(graph.outputs)
    outputs = dict(zip(graph.outputs, tensors[:count], strict=True))
    with told_of(graph):
        assert memory_faults(emitted(outputs, tensors[count:]).manifest) == []


def test_the_random_graphs_have_epilogues() -> None:
    found = 0
    for seed in range(40):
        graph = build(seed, 8)
        outputs = with_copies(list(graph.tensors.values()))
        plan = schedule({f"y{i}": t.node for i, t in enumerate(outputs)})
        found += sum(k.custom is not None and k.custom.epilogue is not None for k in plan.launches)
    assert found > 20
