"""Compute the results of a register tile in a loop instead of one after the other.

    store(gelu(acc0)); store(gelu(acc1)); ... 24 times
    ->  t[0] = acc0; t[1] = acc1; ...  for v: for r: store(gelu(t[v*8 + r]))

What follows a reduction may be long. Written out for each accumulator, the device's compiler mixes
them all and keeps their temporaries in memory; and it takes its time. The array stays in the
innermost cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix
from scheduler.ir.node import Node
from scheduler.ir.ops import COST, ELEMENTWISE, LOOPS, Op
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.pack import Axis
from scheduler.render import opencl_c as cl
from scheduler.render.emitter import Val
from scheduler.render.inner_loops import Loops
from scheduler.render.instance import Instance

# Elementary operations, those of all results together, from which on a loop pays. GELU over a usual
# register tile is above, ReLU below.
ROLL_COST = 200


def is_worth_rolling(
    values: Sequence[Node], axes: Sequence[Axis], instances: Sequence[Instance]
) -> bool:
    """Whether the results of a tile are long to compute, and at regular coordinates."""
    nodes = list(dict.fromkeys(n for v in values for n in scalar_nodes(v, into_reductions=False)))
    if not any(n.op is Op.ACCUMULATE for n in nodes) or any(n.op is Op.STAGE for n in nodes):
        return False
    cost = sum(COST.get(n.op, 1) for n in nodes if n.op in ELEMENTWISE)
    return cost * len(instances) >= ROLL_COST and all(_is_linear(axis) for axis in axes)


def _is_linear(axis: Axis) -> bool:
    starts = axis.starts()
    return bool((starts == starts[:, :1] + axis.lanes * np.arange(axis.unroll)).all())


def roll(
    loops: Loops,
    stack: ExitStack,
    values: Sequence[Node],
    axes: Sequence[Axis],
    instances: Sequence[Instance],
) -> Instance:
    """Put accumulators into arrays, open loops over the tile, and return the coordinate in them.

    Instances are in the order of the axes, the last fastest.
    """
    nodes = dict.fromkeys(n for v in values for n in scalar_nodes(v, into_reductions=False))
    arrays = [
        (node, *_array(loops, node, instances))
        for node in nodes
        if node.op in LOOPS and len({loops.v.key(node, i) for i in instances}) > 1
    ]
    base, place = instances[0], ixs.ZERO
    mapping: dict[Atom, Ix] = dict(base.mapping)
    coordinates = dict(base.coordinates)
    for axis in axes:
        if axis.unroll == 1:
            continue
        u = loops.open_rolled(stack, axis.unroll)
        place = ixs.add(ixs.mul(place, axis.unroll), u)
        mapping[axis.atom] = ixs.add(base.mapping[axis.atom], ixs.mul(u, axis.lanes))
        coordinates[axis.atom] = (base.coordinates[axis.atom][0], u)
    instance = Instance(mapping, coordinates)
    for node, name, vector in arrays:
        value = Val(f"{name}[{loops.e.index(place)}]", vector, loops.e.depth)
        loops.e.remember(loops.v.key(node, instance), value)
    return instance


def _array(loops: Loops, node: Node, instances: Sequence[Instance]) -> tuple[str, bool]:
    """Emit an array of a reduction's results over the tile; return its name, and if of vectors."""
    found = [loops.v.value(node, i) for i in instances]
    name = loops.e.fresh("t")
    kind = cl.ctype(node.dtype, loops.lanes if found[0].vector else 1)
    loops.e.statement(f"{kind} {name}[{len(found)}];")
    for k, value in enumerate(found):
        loops.e.statement(f"{name}[{k}] = {value.code};")
    return name, found[0].vector
