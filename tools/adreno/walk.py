"""Counts how often each instruction of a kernel is issued, by following some of its work-items.

Values that branches depend on are computed from the number of the work-item, so trip counts and
tests at the borders of an image are exact. Values from memory are unknown: a branch on one is
assumed not to be taken unless it leaves a loop, so a loop that ends by one counts once.

    counts = executed(code, items=4096, group=64)
    slots = slots_of_counts(code, counts)
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tools.adreno.statistics import SLOT_NAMES, Instruction, KernelCode

# Maximum number of work-groups that are followed; the counts are their mean.
GROUPS: Final = 4
# Maximum number of work-items that are followed in each group. They run in lock step, so an
# instruction counts as often as in the work-item that issues it most.
ITEMS: Final = 3
# Limit of blocks that one work-item visits, above that of any of our kernels.
_MOST_STEPS: Final = 1 << 20
_MASK: Final = 0xFFFFFFFF
_HALF: Final = 1 << 24  # bit in the number of a register that marks a 16-bit half

# Coordinates of a work-group, or of a work-item in its group.
Ids = tuple[int, int, int]

_REGISTER: Final = re.compile(r"^(?:\([a-z0-9]+\))*(h?[rcp])(\d+)\.([xyzw])$")
# Kind of a register -> number of its file: general, predicate, constant.
_HALF_KINDS: Final = {"hr": 0, "r": 0, "p": 1, "c": 2, "hc": 2}


def _signed(value: int) -> int:
    return value - (1 << 32) if value & 0x80000000 else value


_COMPARISONS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
_OPERATIONS: Final[Mapping[str, Callable[..., int]]] = {
    "add.u": operator.add,
    "add.s": operator.add,
    "sub.u": operator.sub,
    "sub.s": operator.sub,
    "and.b": operator.and_,
    "or.b": operator.or_,
    "xor.b": operator.xor,
    "not.b": operator.invert,
    "shl.b": lambda a, b: a << (b & 31),
    "shr.b": lambda a, b: a >> (b & 31),
    "ashr.b": lambda a, b: _signed(a) >> (b & 31),
    "min.u": min,
    "max.u": max,
    "min.s": lambda a, b: min(_signed(a), _signed(b)),
    "max.s": lambda a, b: max(_signed(a), _signed(b)),
    "absneg.s": lambda a: a,
    "mul.u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "mul.s24": lambda a, b: _signed(a) * _signed(b),
    "mull.u": lambda a, b: (a & 0xFFFF) * (b & 0xFFFF),
    "madsh.m16": lambda a, b, c: (((a >> 16) * (b & 0xFFFF)) << 16) + c,
    "mad.u24": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "mad.s24": lambda a, b, c: _signed(a) * _signed(b) + c,
    "mad.u16": lambda a, b, c: (a & 0xFFFF) * (b & 0xFFFF) + c,
    "sel.b32": lambda a, test, b: a if test else b,
    "sel.b16": lambda a, test, b: a if test else b,
    "shrg": lambda by, a, b: (a >> (by & 31)) | b,
    "shlg": lambda by, a, b: (a << (by & 31)) | b,
    "andg": lambda a, b, c: (a & b) | c,
    "mov.u32u32": lambda a: a,
    "mov.s32s32": lambda a: a,
    "mov.f32f32": lambda a: a,
    "mov.u16u16": lambda a: a,
    "cov.u16s32": lambda a: a & 0xFFFF,
    "cov.u16u32": lambda a: a & 0xFFFF,
    "cov.u32u16": lambda a: a & 0xFFFF,
    "cov.s32s16": lambda a: a & 0xFFFF,
    "cov.u32s32": lambda a: a,
    "cov.s32u32": lambda a: a,
}


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction that a branch depends on.

    Attributes:
        operation: the function of its operands; None if unknown.
        target: number of the register that it writes.
        sources: per operand, a register's number or None, then the constant that replaces None,
            then "neg", "abs" or "".
    """

    operation: Callable[..., int] | None
    target: int
    sources: tuple[tuple[int | None, int, str], ...]


@dataclass(frozen=True, slots=True)
class _Block:
    """Instructions from position `first` to `last`, with the steps that a branch depends on."""

    first: int
    last: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Executed:
    """Mean number of times each instruction is issued for a wave.

    The counts are exact unless a branch depends on memory.
    """

    counts: tuple[float, ...]
    is_exact: bool


def executed(kernel: KernelCode, items: int, group: int) -> Executed:
    """Return how often each instruction of a kernel is issued for a wave, on average.

    The launch has `items` work-items in groups of `group`.
    """
    groups = max(1, items // max(1, group))
    # Groups are spread evenly; items include the first and the last of the group.
    chosen = sorted({(2 * k + 1) * groups // (2 * GROUPS) for k in range(GROUPS)})
    of_group = sorted({k * (group - 1) // max(1, ITEMS - 1) for k in range(ITEMS)})
    return executed_waves(
        kernel, [[((number, 0, 0), (item, 0, 0)) for item in of_group] for number in chosen]
    )


def executed_waves(kernel: KernelCode, waves: Sequence[Sequence[tuple[Ids, Ids]]]) -> Executed:
    """Return how often each instruction is issued for a wave, averaged over some waves.

    `waves` has the followed work-items of each wave, as (work-group, item in the group).
    """
    walker = _Walker(kernel)
    total = [0.0] * len(kernel.code)
    for wave in waves:
        walks = [walker.walk(number, item) for number, item in wave]
        for at in range(len(kernel.code)):
            total[at] += max(walk[at] for walk in walks) / len(waves)
    return Executed(tuple(total), walker.is_exact)


def slots_of_counts(code: Sequence[Instruction], counts: Sequence[float]) -> dict[str, float]:
    """Return the slots of a wave by class, a name of `Slots`."""
    slots = dict.fromkeys(SLOT_NAMES, 0.0)
    for instruction, count in zip(code, counts, strict=True):
        slots[instruction.kind] += count * instruction.repeats
        slots["wait"] += count * instruction.nops
    return slots


def _number(register: str) -> int | None:
    """Return a register as a number (see `_full_register`), None for any other operand."""
    match = _REGISTER.match(register)
    if match is None:
        return None
    kind, at = match[1], int(match[2]) * 4 + "xyzw".index(match[3])
    is_half = kind.startswith("h")
    # Numbers count halves, so a full register has an even number and the next one is its second
    # half: hr0.x and hr0.y are in r0.x.
    return (_HALF_KINDS[kind] << 20) + (at | _HALF if is_half else 2 * at)


def _full_register(number: int) -> int:
    """Return the number of the full register that contains a half, or is the register itself."""
    return number & ~_HALF & ~1


class _Walker:
    """Follows single work-items through the code of a kernel."""

    def __init__(self, kernel: KernelCode) -> None:
        self._code = kernel.code
        # If the compiler counts half registers, they have a separate file.
        self._halves_overlap = kernel.half == 0
        self._loop_ends = dict(kernel.loops)
        needed = _needed(kernel.code)
        self._blocks = _blocks(kernel.code, needed)
        self._constants = {_number(name): value for name, value in kernel.constants}
        self._inputs = {system: _number(register) for system, register in kernel.inputs}
        self.is_exact = True

    def walk(self, group: Ids, item: Ids) -> list[int]:
        """Return how often each instruction is issued for one work-item."""
        values: dict[int | None, int] = dict(self._constants)
        for system, numbers in (("WORKGROUP_ID", group), ("LOCAL_INVOCATION_ID", item)):
            register = self._inputs.get(system)
            if register is not None:
                values |= {register + 2 * axis: number for axis, number in enumerate(numbers)}
        visits = dict.fromkeys(self._blocks, 0)
        at, steps = 0, 0
        while at in self._blocks and steps < _MOST_STEPS:
            block = self._blocks[at]
            visits[at] += 1
            steps += 1
            for step in block.steps:
                _execute(step, values, overlap=self._halves_overlap)
            at = self._next(block, values)
        self.is_exact &= steps < _MOST_STEPS
        counts = [0] * len(self._code)
        for first, count in visits.items():
            last = self._blocks[first].last
            counts[first : last + 1] = [count] * (last + 1 - first)
        return counts

    def _next(self, block: _Block, values: Mapping[int | None, int]) -> int:
        """Return the position of the next block; -1 at the end."""
        last = self._code[block.last]
        if last.op == "end":
            return -1
        if last.target is None or not last.op.startswith(("br", "jump")):
            return block.last + 1
        if last.op == "jump" or not last.operands:
            return last.target
        holds = [self._holds(operand, values) for operand in last.operands]
        # `brao` branches if any operand holds, every other branch if all do.
        is_any = last.op.startswith("brao")
        if is_any and True in holds:
            return last.target
        if not is_any and False in holds:
            return block.last + 1
        if None in holds:
            self.is_exact = False
            return self._unknown(block.last, last.target)
        return block.last + 1 if is_any else last.target

    def _holds(self, operand: str, values: Mapping[int | None, int]) -> bool | None:
        value = values.get(_number(operand.lstrip("!")))
        return None if value is None else (value != 0) is not operand.startswith("!")

    def _unknown(self, at: int, target: int) -> int:
        """Return the next position after an unknown test: out of a loop, else the next block."""
        leaves = any(first <= at <= last < target for first, last in self._loop_ends.items())
        return target if leaves else at + 1


def _execute(step: Step, values: dict[int | None, int], *, overlap: bool) -> None:
    """Compute one instruction; an unknown operand makes its result unknown."""
    arguments = []
    for register, constant, sign in step.sources:
        value = constant if register is None else values.get(register)
        if value is None:
            break
        if sign == "neg":
            value = -value
        elif sign == "abs":
            value = abs(_signed(value))
        arguments.append(value & _MASK)
    # Writing a full register overwrites both halves; writing a half overwrites the full register.
    if overlap:
        whole = _full_register(step.target)
        for other in (whole,) if step.target & _HALF else (whole | _HALF, whole | _HALF | 1):
            values.pop(other, None)
    if step.operation is None or len(arguments) != len(step.sources):
        values.pop(step.target, None)
    else:
        values[step.target] = step.operation(*arguments) & _MASK


def _blocks(code: Sequence[Instruction], needed: frozenset[int]) -> dict[int, _Block]:
    """Return the blocks by first position. `needed` limits their steps (see `_needed`)."""
    firsts = {0} | {i.target for i in code if i.target is not None}
    firsts |= {at + 1 for at, i in enumerate(code) if i.target is not None or i.op == "end"}
    ordered = sorted(first for first in firsts if first < len(code))
    blocks = {}
    for first, behind in zip(ordered, [*ordered[1:], len(code)], strict=True):
        steps = tuple(
            s for i in code[first:behind] for s in _steps(i) if _full_register(s.target) in needed
        )
        blocks[first] = _Block(first, behind - 1, steps)
    return blocks


def _needed(code: Sequence[Instruction]) -> frozenset[int]:
    """Return the registers that a branch depends on, each as the number of its even half."""
    steps = [step for instruction in code for step in _steps(instruction)]
    needed = {
        _full_register(number)
        for instruction in code
        if instruction.target is not None
        for number in (_number(word.lstrip("!")) for word in instruction.operands)
        if number is not None
    }
    while True:
        more = {
            _full_register(register)
            for step in steps
            if _full_register(step.target) in needed and step.operation is not None
            for register, _, _ in step.sources
            if register is not None
        }
        if more <= needed:
            return frozenset(needed)
        needed |= more


def _steps(instruction: Instruction) -> Iterator[Step]:
    """Return the computations of an instruction, one step per repetition."""
    if not instruction.operands or instruction.kind in ("store", "wait", "flow"):
        return
    target = _number(instruction.operands[0])
    if target is None:
        return
    width = 1 if _bare(instruction.operands[0]).startswith("h") else 2
    operation = _operation(instruction.op)
    if operation is None:
        for k in range(_results(instruction)):
            yield Step(None, target + width * k, ())
        return
    sources = [_source(word) for word in instruction.operands[1:]]
    for k in range(instruction.repeats):
        moved = tuple(
            (None if r is None else r + k * step, constant, sign)
            for r, constant, sign, step in filter(None, sources)
        )
        yield Step(operation if None not in sources else None, target + width * k, moved)


def _results(instruction: Instruction) -> int:
    """Return the number of consecutive registers that an instruction writes."""
    if instruction.kind == "texture":
        mask = re.search(r"\(([xyzw]+)\)", instruction.operands[0])
        return len(mask[1]) if mask else 4
    if instruction.kind in ("load", "local"):
        last = instruction.operands[-1]
        return int(last) if last.isdecimal() else 4
    return instruction.repeats


def _bare(operand: str) -> str:
    """Return an operand without its bracketed prefixes."""
    return re.sub(r"^(\([a-z0-9]+\))+", "", operand)


def _operation(op: str) -> Callable[..., int] | None:
    if match := re.match(r"cmps\.([us])\.(\w\w)$", op):
        compare = _COMPARISONS[match[2]]
        if match[1] == "u":
            return lambda a, b: int(compare(a, b))
        return lambda a, b: int(compare(_signed(a), _signed(b)))
    return _OPERATIONS.get(op)


def _source(word: str) -> tuple[int | None, int, str, int] | None:
    """Return (register, constant, sign, step between repetitions); None for any other operand."""
    sign = next((s for s in ("neg", "abs") if f"({s})" in word), "")
    bare = _bare(word)
    if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", bare):
        return None, int(bare, 0), sign, 0
    number = _number(bare)
    if number is None:
        return None
    width = 1 if bare.startswith("h") else 2
    return number, 0, sign, width if "(r)" in word else 0
