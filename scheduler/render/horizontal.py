"""Combines the lanes of vector accumulators, for reductions with lanes along a reduced range.

    8 sums of 8 lanes   ->   4 vectors, each with 4 lanes of 2 sums   ->   2 of 4   ->   1 of 8

Several sums share full vectors, which takes 7 steps instead of 24. The pairs combined are the same
as for a single sum, so the results are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.ir import dtype as dt
from scheduler.ir.ops import Op
from scheduler.render import opencl_c as cl
from scheduler.render.kernel_code import Emitter

# Most processors move lanes for free within this many lanes of a register (128 bits).
PART = 4


@dataclass(frozen=True, slots=True)
class _Sums:
    """A variable whose lanes are equal blocks of several sums."""

    name: str  # the variable's name
    owners: tuple[int, ...]  # number of the sum that owns each block, in order


def combine_lanes(e: Emitter, names: list[str], op: Op, kind: dt.DType, lanes: int) -> list[str]:
    """Emit the reduction of each accumulator to one element; return the elements' expressions."""
    found: list[str] = []
    while len(found) < len(names):
        left = names[len(found) :]
        count = min(1 << (len(left).bit_length() - 1), lanes) if kind is not dt.bool_ else 1
        found += _group(e, left[:count], op, kind, lanes) if count > 1 else []
        found += [_alone(e, left[0], op, kind, lanes)] if count == 1 else []
    return found


def _alone(e: Emitter, name: str, op: Op, kind: dt.DType, lanes: int) -> str:
    """Combine the lanes of one accumulator by halves."""
    code = name
    while lanes > 1:
        lanes //= 2
        low, high = ("lo", "hi") if lanes > 1 else ("s0", "s1")
        text = cl.combine(op, f"{code}.{low}", f"{code}.{high}", kind, lanes)
        if kind is dt.bool_ and lanes == 1:
            text = f"-({text})"  # true is -1 in a lane and 1 as a scalar
        code = e.fresh("h")
        e.statement(f"{cl.ctype(kind, lanes)} {code} = {text};")
    return code


def _group(e: Emitter, names: list[str], op: Op, kind: dt.DType, lanes: int) -> list[str]:
    """Combine a number of accumulators that is a power of two and at most the number of lanes."""
    level = [_Sums(name, (i,)) for i, name in enumerate(names)]
    block = lanes
    while block > 1:
        pairs = list(zip(level[::2], level[1::2], strict=True)) if len(level) > 1 else [(level[0],)]
        level = [_halved(e, pair, op, kind, block) for pair in pairs]
        block //= 2
    place = {owner: k for k, owner in enumerate(level[0].owners)}
    return [f"{level[0].name}.s{place[i]:x}" for i in range(len(names))]


def _halved(e: Emitter, pair: tuple[_Sums, ...], op: Op, kind: dt.DType, block: int) -> _Sums:
    """Combine the two halves of each block of one variable, or of two variables into one."""
    width = len(pair[0].owners) * block
    chunk = width if block > PART else min(width, PART)
    low: list[str] = []
    high: list[str] = []
    owners: list[int] = []
    for start in range(0, width, chunk):
        for sums in pair:
            blocks = range(start, start + chunk, block)
            owners += [sums.owners[b // block] for b in blocks]
            for half, first in ((low, 0), (high, block // 2)):
                places = [b + first + k for b in blocks for k in range(block // 2)]
                half.append(f"{sums.name}.s{''.join(f'{p:x}' for p in places)}")
    size = len(owners) * block // 2
    wide = cl.ctype(kind, size)
    halves = []
    for parts in (low, high):
        halves.append(e.fresh("h"))
        e.statement(f"const {wide} {halves[-1]} = ({wide})({', '.join(parts)});")
    name = e.fresh("h")
    e.statement(f"{wide} {name} = {cl.combine(op, halves[0], halves[1], kind, size)};")
    return _Sums(name, tuple(owners))
