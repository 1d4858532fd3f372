"""Computes the results of a register tile in a loop instead of unrolled code.

    store(gelu(acc0)); store(gelu(acc1)); ... 24 times
    ->  t[0] = acc0; t[1] = acc1; ...  for v: for r: store(gelu(t[v*8 + r]))

In unrolled code, compilers interleave long epilogues and spill their temporaries to memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix
from scheduler.ir.node import Node, is_weight
from scheduler.ir.ops import COST, ELEMENTWISE, LOOPS, Op
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.pack import Axis
from scheduler.loops.place import Place
from scheduler.render import opencl_c as cl
from scheduler.render.inner_loops import Loops
from scheduler.render.kernel_code import Instance, Val
from scheduler.render.values import Values

# Elementary operations of all results together from which a loop pays. GELU over a typical tile is
# above this limit, ReLU below.
ROLL_COST = 200


def is_worth_rolling(
    values: Sequence[Node], axes: Sequence[Axis], instances: Sequence[Instance]
) -> bool:
    """Whether the results of a tile are expensive and lie at regular coordinates."""
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
    """Store accumulators (last axis fastest) in arrays, open loops; return their coordinate."""
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
    """Emit an array of a tile's results; return its name, and whether it holds vectors."""
    found = [loops.v.value(node, i) for i in instances]
    name = loops.e.fresh("t")
    kind = cl.ctype(node.dtype, loops.lanes if found[0].vector else 1)
    loops.e.statement(f"{kind} {name}[{len(found)}];")
    for k, value in enumerate(found):
        loops.e.statement(f"{name}[{k}] = {value.code};")
    return name, found[0].vector


# --- Transposed loads: vectors along memory, transposed in registers --------------------------
#
#     lanes over p, 16 coordinates c, x[p, c]:     16 x 16 scalar loads
#     ->  r0 = x[p, c..], r1 = x[p+1, c..], ...    16 vector loads
#         a0 = r0 and r8, element by element       4 rounds of 16 interleavings
#         ...                                      vector of lane p for each c
#
# A transposition of n rows is log2(n) rounds of interleaving row i with row i + n/2.


def transpose_loads(v: Values, values: Sequence[Node], instances: Sequence[Instance]) -> None:
    """Emit the strided loads of a tile as vectors, and remember the value of each.

    There are as many instances as lanes. From one instance to the next, such a load moves by one
    element.
    """
    loads = dict.fromkeys(n for value in values for n in scalar_nodes(value) if n.op is Op.LOAD)
    for load in loads:
        place: Place = load.arg
        offsets = [ixs.substitute(place.offset, i.mapping) for i in instances]
        runs = all(o is ixs.shift(offsets[0], k) for k, o in enumerate(offsets))
        strided = v.moves(offsets[0]) and ixs.coefficient(offsets[0], v.lane) not in (0, 1)
        if is_weight(load.src[0]) or len(instances) != v.lanes or not (runs and strided):
            continue
        pointer = v.pointers.argument(load.src[0])
        rows = []
        for lane in range(v.lanes):
            start = v.at_lane(offsets[0], lane)
            base, at = v.pointers.address(pointer, start, load.dtype)
            aligned = v.pointers.is_aligned(start, load.dtype, v.lanes)
            code = cl.load(base, at, load.dtype, v.lanes, aligned=aligned)
            rows.append(_variable(v, load, code))
        half = v.lanes // 2
        for _ in range(v.lanes.bit_length() - 1):
            pairs = list(zip(rows[:half], rows[half:], strict=True))
            rows = [
                _variable(v, load, _interleaved(v, load, *pair, part))
                for pair in pairs
                for part in ("lo", "hi")
            ]
        for offset, row in zip(offsets, rows, strict=True):
            key = ("load", load.src[0], offset, (), place.fill)
            v.e.remember(key, Val(row, vector=True, depth=v.e.depth))


def _variable(v: Values, load: Node, code: str) -> str:
    name = v.e.fresh("r")
    v.e.statement(f"const {cl.ctype(load.dtype, v.lanes)} {name} = {code};")
    return name


def _interleaved(v: Values, load: Node, a: str, b: str, part: str) -> str:
    start = v.lanes // 2 if part == "hi" else 0
    parts = ", ".join(f"{x}.s{start + k:x}" for k in range(v.lanes // 2) for x in (a, b))
    return f"({cl.ctype(load.dtype, v.lanes)})({parts})"
