"""Reads the output of Mesa's compiler for Adreno: the code and statistics of each kernel.

    for kernel in read_log(text):
        print(kernel.name, kernel.instructions, kernel.slots.mac, kernel.hot_loop)

An instruction takes one issue slot per repetition, and one per `nop` that is folded into it. The
preamble is left out, because it runs once per launch, not once per work-item.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Final

# Bytes per instruction of any kind.
INSTRUCTION_BYTES: Final = 8

_FLAG: Final = re.compile(r"\(([a-z]+)(\d*)\)")
_PREFIX: Final = re.compile(r"^(?:MESA: info: ?)?(?::\d:\d+:\d+\[[0-9a-fx_]+\]\s*)?")
_CLASSES: Final = (
    ("wait", re.compile(r"nop")),
    ("mac", re.compile(r"mad\.f")),
    ("conversion", re.compile(r"cov\.")),
    ("special", re.compile(r"h?(rcp|rsq|log2|exp2|sqrt|sin|cos)\b")),
    ("texture", re.compile(r"i?sam|gather4|getlod|getsize|getinfo|dsx|dsy")),
    ("local", re.compile(r"[ls][dt]lw?\b|atomic\.[a-z.]*\bl\b")),
    ("load", re.compile(r"ld[gipc]|ldib|resinfo|resbase|atomic")),
    ("store", re.compile(r"st[gipc]|stib")),
    ("move", re.compile(r"mov|swz|gat\b|sct\b")),
    (
        "flow",
        re.compile(
            r"br|jump|end|ret|call|bar|fence|shp[se]|getone|getlast|elect|pred|kill|bany|ball|sleep"
        ),
    ),
    ("alu", re.compile(r"[a-z0-9]+\.f(16|32)?\b")),
)


@dataclass(frozen=True, slots=True)
class Slots:
    """Issue slots by class.

    Attributes:
        mac: float multiply-adds.
        alu: other float arithmetic, including comparisons.
        integer: all integer arithmetic, including that for addresses and conditions.
        texture: image reads.
        load, store: accesses of buffers, written images and spilled registers.
        local: accesses of local memory.
        flow: branches, barriers, ends.
        wait: idle slots.
    """

    mac: int = 0
    alu: int = 0
    integer: int = 0
    conversion: int = 0
    move: int = 0
    special: int = 0
    texture: int = 0
    load: int = 0
    store: int = 0
    local: int = 0
    flow: int = 0
    wait: int = 0

    @property
    def total(self) -> int:
        """Number of all slots."""
        return sum(self.plain().values())

    def plain(self) -> dict[str, int]:
        """Return the slots by name."""
        return {name: getattr(self, name) for name in SLOT_NAMES}


SLOT_NAMES: Final = tuple(field.name for field in fields(Slots))


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction."""

    op: str
    operands: tuple[str, ...] = ()  # as printed, without the label of a branch
    repeats: int = 1  # number of times it is issued
    nops: int = 0  # slots that it waits before
    target: int | None = None  # position it may branch to; None if it is no branch

    @property
    def kind(self) -> str:
        """The class of its slots, a name of `Slots`."""
        return kind_of(self.op)


@dataclass(frozen=True)
class KernelCode:
    """The compiled code of one kernel.

    Attributes:
        code: its instructions, without the preamble and anything after the last `end`.
        instructions, nops: the compiler's counts, repetitions included; nops are instructions.
        full, half: number of 32-bit and of 16-bit registers, each with four components.
        code_bytes: size of the loaded code.
        constants: known values of constant registers, named as in `c8.x`.
        inputs: registers that hold the first component of the work-group and of the item in it.
    """

    name: str
    code: tuple[Instruction, ...]
    instructions: int
    nops: int
    full: int
    half: int
    code_bytes: int
    constants: tuple[tuple[str, int], ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()

    @cached_property
    def slots(self) -> Slots:
        """Slots of the whole code, each instruction once."""
        return slots_of(self.code)

    @cached_property
    def loops(self) -> tuple[tuple[int, int], ...]:
        """First and last position of each loop, outer loops first."""
        ends: dict[int, int] = {}
        for at, instruction in enumerate(self.code):
            if instruction.target is not None and instruction.target <= at:
                ends[instruction.target] = at
        return tuple(sorted(ends.items(), key=lambda loop: (loop[0], -loop[1])))

    @cached_property
    def hot_loop(self) -> Slots | None:
        """Slots of the innermost loop with the most multiply-adds, then with the most slots."""
        inner = [
            (first, last)
            for first, last in self.loops
            if not any(first <= a and b <= last and (a, b) != (first, last) for a, b in self.loops)
        ]
        found = [slots_of(self.code[first : last + 1]) for first, last in inner]
        return max(found, key=lambda slots: (slots.mac, slots.total), default=None)

    @property
    def spills(self) -> int:
        """Number of instructions that save or load a spilled register."""
        return sum(i.op.startswith(("stp", "ldp")) for i in self.code)


def kind_of(op: str) -> str:
    """Return the class of an instruction's slots."""
    return next((kind for kind, pattern in _CLASSES if pattern.match(op)), "integer")


def slots_of(code: Sequence[Instruction]) -> Slots:
    """Return the slots of instructions, each issued once."""
    counts = dict.fromkeys(SLOT_NAMES, 0)
    for instruction in code:
        counts[instruction.kind] += instruction.repeats
        counts["wait"] += instruction.nops
    return Slots(**counts)


def read_log(text: str) -> tuple[KernelCode, ...]:
    """Return the kernels of a log, each once, in the order of their first appearance.

    A kernel is compiled for launches with and without an offset of work-items. Ours have no offset,
    and the log has that code last.
    """
    found: dict[str, KernelCode] = {}
    name = ""
    lines: list[str] | None = None
    for raw in text.splitlines():
        line = _PREFIX.sub("", raw, count=1).strip()
        if match := re.match(r"impl (?:__wrapped_)?(\w+) \{", line):
            name = match[1]
        elif line.startswith("Native code for"):
            lines = []
        elif lines is not None and (line.startswith(("NIR (", "@begin", "@end"))):
            found[name] = read_code(name, lines)
            lines = None
        elif lines is not None:
            lines.append(line)
    if lines is not None:
        found[name] = read_code(name, lines)
    return tuple(found.values())


def condensed(text: str) -> str:
    """Return the lines of a log that `read_log` reads, a small part of it."""
    kept: list[str] = []
    is_code = False
    for raw in text.splitlines():
        line = _PREFIX.sub("", raw, count=1).strip()
        if line.startswith(("impl ", "Native code for")):
            is_code = not line.startswith("impl ")
            kept.append(line)
        elif line.startswith("NIR ("):
            is_code = False
            kept.append(line)
        elif is_code and line:
            kept.append(line)
    return "\n".join(kept) + "\n"


def read_code(name: str, lines: Sequence[str]) -> KernelCode:
    """Return one kernel from the lines of its code and its statistics."""
    counts: dict[str, int] = {}
    constants: list[tuple[str, int]] = []
    inputs: list[tuple[str, str]] = []
    code: list[str] = []
    for line in lines:
        if line.startswith("; CL prog"):
            pairs = re.findall(r"(\d+) ([a-z-]+)", line.split(":", 1)[1])
            counts |= {key: int(number) for number, key in pairs}
        elif line.startswith("; CL: inputs"):
            inputs += re.findall(r"(r\d+\.\w) \(SYSTEM_VALUE_(\w+) ", line)
        elif match := re.match(r"@const\((c\d+)\.x\)\s+(.*)", line):
            words = [int(word, 16) for word in match[2].split(",")]
            constants += [(f"{match[1]}.{c}", w) for c, w in zip("xyzw", words, strict=False)]
        elif line and not line.startswith((";", "@")):
            code.append(line)
    return KernelCode(
        name=name,
        code=_instructions(code),
        instructions=counts.get("instr", 0),
        nops=counts.get("nops", 0),
        full=counts.get("full", 0),
        half=counts.get("half", 0),
        code_bytes=counts.get("dwords", 0) * INSTRUCTION_BYTES // 2,
        constants=tuple(constants),
        inputs=tuple((system, register) for register, system in inputs),
    )


def _instructions(lines: Sequence[str]) -> tuple[Instruction, ...]:
    """Return the instructions between the preamble and the last `end`."""
    ends = [at for at, line in enumerate(lines) if re.search(r"(^|\))end$", line)]
    kept = list(lines[: ends[-1] + 1]) if ends else list(lines)
    shpe = next((at for at, line in enumerate(kept) if re.search(r"\bshpe$", line)), None)
    if shpe is not None:
        kept = kept[shpe + 1 :]
    return tuple(_parsed(kept))


def _parsed(lines: Sequence[str]) -> Iterator[Instruction]:
    positions: dict[str, int] = {}
    at = 0
    for line in lines:
        if line.endswith(":"):
            positions[line[:-1]] = at
        else:
            at += 1
    for line in lines:
        if line.endswith(":"):
            continue
        flags = {}
        rest = line
        while match := _FLAG.match(rest):
            flags[match[1]] = int(match[2] or 0)
            rest = rest[match.end() :].lstrip()
        op, _, operands = rest.partition(" ")
        words = [word.strip() for word in operands.split(",")] if operands else []
        label = next((word[1:] for word in words if word.startswith("#")), None)
        yield Instruction(
            op=op,
            operands=tuple(word for word in words if not word.startswith("#")),
            repeats=1 + flags.get("rpt", 0),
            nops=flags.get("nop", 0),
            target=None if label is None else positions.get(label),
        )
