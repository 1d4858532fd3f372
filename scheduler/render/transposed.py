"""Load a tile as vectors along memory, and transpose it in registers.

    lanes over p, 16 coordinates c, x[p, c]:     16 x 16 scalar loads
    ->  r0 = x[p, c..], r1 = x[p+1, c..], ...    16 vector loads
        a0 = r0 and r8, element by element       4 rounds of 16 interleavings
        ...                                      vector of lane p for each c

Interleaving row i with row i + n/2, and that log2(n) times, is a transposition.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.ir import index as ixs
from scheduler.ir.node import Node, is_weight
from scheduler.ir.ops import Op
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.place import Place
from scheduler.render import opencl_c as cl
from scheduler.render.emitter import Val
from scheduler.render.instance import Instance
from scheduler.render.values import Values


def transpose_loads(v: Values, values: Sequence[Node], instances: Sequence[Instance]) -> None:
    """Emit the strided loads of a tile together; each is then found where it is needed.

    Args:
        v: what computes the values.
        values: to be computed at each of the instances.
        instances: as many as lanes; from one to the next such loads move by one element.
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
