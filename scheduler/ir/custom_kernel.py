"""Defines CustomKernel, a hand-written OpenCL kernel: its source, outputs and checks.

The source is the body of a kernel. It may have a slot, the statement `EPILOGUE(value, index);`,
into which the compiler fuses elementwise work on the kernel's first output.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.texts import count_text
from scheduler.errors import ModelError
from scheduler.ir.dtype import DType, as_dtype
from scheduler.ir.node import Node
from scheduler.ir.ops import Op

# --- Parsing a custom kernel: its epilogue slot, and the device features it needs -------------

# Longest source in characters: far more than a hand-written kernel needs, so checks are fast.
MAX_SOURCE = 65536
_COMMENT = r"//[^\n]*|/\*.*?\*/"
_LITERAL = r'"(?:[^"\\\n]|\\.)*"|' + r"'(?:[^'\\\n]|\\.)*'"
_APART = re.compile(f"(?P<comment>{_COMMENT})|(?P<literal>{_LITERAL})", re.DOTALL)
_IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*", re.ASCII)
# Names used by the code generated around the source. Sources may use two of them, see
# docs/passes/custom-kernels.md.
_RESERVED = re.compile(r"(?!(m_fma|M_LOAD)$)[mM]_\w+|epilogue_\w+")
_DIRECTIVE = re.compile(r"^[ \t]*#(?![ \t]*pragma\b)", re.MULTILINE)
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_SLOT = "EPILOGUE"
_BEFORE_STATEMENT = frozenset("{};):")
# Names that only a kernel can use (local memory, images), or that concern a whole work-group.
_WORK_GROUP: Final = re.compile(
    r"(__)?(local|constant)|barrier|async_\w+|wait_group_events|(work|sub)_group_\w+"
    r"|get_(max_|enqueued_)?(num_)?sub_group\w*|image\w*"
)
_DOUBLE: Final = re.compile(r"double(2|3|4|8|16)?")
_LOCAL_ARRAY: Final = re.compile(r"\b(?:__)?local (\w+?)(\d*) \w+((?:\[\d+\])+)")
_BYTES: Final = {
    "char": 1,
    "uchar": 1,
    "short": 2,
    "ushort": 2,
    "half": 2,
    "int": 4,
    "uint": 4,
    "float": 4,
    "long": 8,
    "ulong": 8,
    "double": 8,
}


@dataclass(frozen=True, slots=True)
class Slot:
    """An EPILOGUE statement."""

    start: int  # position in the source (start, end), including the semicolon
    end: int
    value: str  # arguments (value, index)
    index: str


@dataclass(frozen=True, slots=True)
class Source:
    """The parsed body of a custom kernel."""

    text: str  # the source text
    names: frozenset[str]  # identifiers, without those in comments and literals
    slot: Slot | None  # slot that stores the first output; None if the source stores it itself
    float64: bool  # whether it names a double type
    work_group: bool  # whether it uses kernel-only features such as local memory and barriers
    local_bytes: int  # bytes of arrays in local memory whose declaration has a literal size


@lru_cache(maxsize=256)
def read_source(name: str, text: str) -> Source:
    """Parse and check the source of a custom kernel.

    Only its form is checked: that it stays inside the function it is put into. Raises ModelError if
    it is too long, has unbalanced brackets, or contains something that a body must not contain.
    """
    where = f"custom kernel {name}"
    if not text.strip() or len(text) > MAX_SOURCE:
        raise ModelError(
            f"{where}: expected 1 to {MAX_SOURCE} characters of source, found {len(text)}"
        )
    if any(c not in "\n\t" and not " " <= c <= "~" for c in text) or "\\\n" in text:
        raise ModelError(f"{where}: expected plain ASCII text without continued lines")
    # `code` has blanks for comments, `bare` also for literals. Positions stay the same.
    code = _APART.sub(lambda m: _blank(m[0]) if m["comment"] else m[0], text)
    bare = _APART.sub(lambda m: _blank(m[0]), text)
    if any(mark in bare for mark in ('"', "'", "/*")):
        raise ModelError(f"{where}: unterminated comment or literal")
    if _DIRECTIVE.search(bare):
        raise ModelError(
            f"{where}: a preprocessor directive reaches beyond the kernel; only #pragma is allowed"
        )
    closing = _matches(where, bare)
    names = frozenset(_IDENTIFIER.findall(bare))
    reserved = sorted(n for n in names if _RESERVED.fullmatch(n))
    if reserved:
        raise ModelError(f"{where}: {reserved[0]} is a reserved name; choose another")
    return Source(
        text,
        names,
        _find_slot(where, code, bare, closing),
        any(_DOUBLE.fullmatch(name) for name in names),
        any(_WORK_GROUP.fullmatch(name) for name in names),
        sum(_array_bytes(*found) for found in _LOCAL_ARRAY.findall(bare)),
    )


def _array_bytes(base: str, lanes: str, extents: str) -> int:
    """Return the size in bytes of an array "float4 a[2][16]"; 0 for an unknown type."""
    return _BYTES.get(base, 0) * int(lanes or 1) * prod(map(int, re.findall(r"\d+", extents)))


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _matches(where: str, bare: str) -> dict[int, int]:
    """Return the position of the closing bracket of each opening one."""
    found: dict[int, int] = {}
    stack: list[int] = []
    for at, char in enumerate(bare):
        if char in _PAIRS:
            stack.append(at)
        elif char in ")]}":
            if not stack or _PAIRS[bare[stack[-1]]] != char:
                line = bare.count("\n", 0, at) + 1
                raise ModelError(f'{where}: line {line}: "{char}" closes nothing')
            found[stack.pop()] = at
    if stack:
        line = bare.count("\n", 0, stack[-1]) + 1
        raise ModelError(f'{where}: line {line}: "{bare[stack[-1]]}" is not closed')
    return found


def _find_slot(where: str, code: str, bare: str, closing: dict[int, int]) -> Slot | None:
    starts = [m.start() for m in _IDENTIFIER.finditer(bare) if m[0] == _SLOT]
    if not starts:
        return None
    problem = f"{where}: expected one statement {_SLOT}(value, index);"
    if len(starts) > 1:
        raise ModelError(f"{problem} found {len(starts)}")
    (start,) = starts
    before = bare[:start].rstrip()
    after_word = re.search(r"\b(else|do)$", before) is not None
    is_statement = not before or before[-1] in _BEFORE_STATEMENT or after_word
    inside = any(bare[a] != "{" and a < start < b for a, b in closing.items())
    opening = start + len(_SLOT)
    opening += len(bare[opening:]) - len(bare[opening:].lstrip())
    if not is_statement or inside or opening not in closing or bare[opening] != "(":
        raise ModelError(f"{problem} it is used as something else")
    end = closing[opening]
    semicolon = re.compile(r"\s*;").match(bare, end + 1)
    parts = _split(code, bare, opening + 1, end)
    if semicolon is None or len(parts) != 2 or not all(p.strip() for p in parts):
        raise ModelError(f"{problem} found {len(parts)} arguments, or no semicolon")
    return Slot(start, semicolon.end(), parts[0].strip(), parts[1].strip())


def _split(code: str, bare: str, start: int, end: int) -> list[str]:
    """Return the arguments between two positions, split at commas outside brackets."""
    parts, depth, begin = [], 0, start
    for at in range(start, end):
        depth += (bare[at] in _PAIRS) - (bare[at] in ")]}")
        if bare[at] == "," and depth == 0:
            parts.append(code[begin:at])
            begin = at + 1
    return [*parts, code[begin:end]]


Array = NDArray[Any]
Reference = Callable[..., Array | Sequence[Array]]

_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_PARAMETER = re.compile(r"(in|out)(\d+)")
# Work-items and elements are counted with int.
_MAX_COUNT = 2**31 - 1
# Supported vector widths: those of OpenCL C without 3.
LANES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class CustomKernel:
    """A hand-written OpenCL C kernel. Immutable; compared by its fields.

    Raises ModelError if a field is invalid; the message names the kernel.
    """

    name: str  # an identifier; the kernel's name in messages and tables
    # Body of the kernel. Its parameters are `in0`, `in1`, ... and `out0`, `out1`, ..., row-major
    # pointers to the stored type (`half` for float16, `uchar` for bool). At most one statement
    # `EPILOGUE(value, index);` stores an element of the first output at a flat index. Then the
    # source must not name `out0`.
    source: str
    outputs: Sequence[tuple[Sequence[int], DType | Any]]  # shape and type of each output
    items: int  # number of work-items, counted by `get_global_id(0)`; each is its own work-group
    # The same function in numpy: input arrays -> output arrays (or the only one). Required by the
    # interpreter, not by the compiler.
    reference: Reference | None = field(default=None, repr=False)
    flops: int = 0  # operations per launch, for tables
    # Number of consecutive elements of the last axis that `EPILOGUE(value, index);` stores from
    # `index` on; its value is a vector of this width. It must divide the last axis.
    lanes: int = 1

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ModelError(
                f"custom kernel {self.name[:64]!r}: expected an identifier of up to 64 characters"
            )
        outputs = tuple((tuple(map(int, s)), as_dtype(d)) for s, d in self.outputs)
        object.__setattr__(self, "outputs", outputs)
        fits = [min(s, default=1) > 0 and prod(s) <= _MAX_COUNT for s, _ in outputs]
        if not fits or not all(fits):
            raise ModelError(f"{self._where}: each output must have elements, found {outputs}")
        if not 0 < self.items <= _MAX_COUNT or self.flops < 0:
            raise ModelError(
                f"{self._where}: expected at least one work-item and no negative flops, "
                f"found {self.items} and {self.flops}"
            )
        last = (1, *self.outputs[0][0])[-1]
        if self.lanes not in LANES or last % self.lanes:
            raise ModelError(
                f"{self._where}: expected lanes out of {LANES} that divide the last axis of the "
                f"first output, {last}; found {self.lanes}"
            )
        self._check_outputs(read_source(self.name, self.source))

    def __str__(self) -> str:
        return self.name

    @property
    def _where(self) -> str:
        return f"custom kernel {self.name}"

    @property
    def has_slot(self) -> bool:
        """Whether an epilogue can be fused where the first output is stored."""
        return read_source(self.name, self.source).slot is not None

    def _check_outputs(self, source: Source) -> None:
        unknown = sorted(_numbered("out", source) - set(range(len(self.outputs))))
        if unknown:
            has = count_text(len(self.outputs), "output")
            raise ModelError(f"{self._where}: names out{unknown[0]}; it has {has}")
        if source.slot is not None and 0 in _numbered("out", source):
            raise ModelError(
                f"{self._where}: uses EPILOGUE and names out0; the stored element may have "
                "another type, so write it through EPILOGUE only"
            )

    def check_inputs(self, count: int) -> None:
        """Raise ModelError if the source names an input beyond the first `count`."""
        unknown = sorted(_numbered("in", read_source(self.name, self.source)) - set(range(count)))
        if unknown:
            given = count_text(count, "input")
            raise ModelError(f"{self._where}: names in{unknown[0]}, but is given {given}")

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the reference's outputs; raise ModelError if they do not fit or it is missing."""
        if self.reference is None:
            raise ModelError(
                f"{self._where}: the interpreter cannot run OpenCL C; give reference=, a numpy "
                "function, or compute it on a device"
            )
        found = self.reference(*inputs)
        arrays = [found] if isinstance(found, np.ndarray | np.generic) else list(found)
        shapes = [np.shape(a) for a in arrays]
        if shapes != [shape for shape, _ in self.outputs]:
            raise ModelError(
                f"{self._where}: its reference returned shapes {shapes}, expected "
                f"{[shape for shape, _ in self.outputs]}"
            )
        return tuple(np.asarray(a, d.np) for a, (_, d) in zip(arrays, self.outputs, strict=True))


def _numbered(prefix: str, source: Source) -> set[int]:
    """Return the numbers of the parameters `in` or `out` that a source names."""
    found = (_PARAMETER.fullmatch(name) for name in source.names)
    return {int(m[2]) for m in found if m is not None and m[1] == prefix}


def bound_input(source: Node) -> Node:
    """Return the node whose storage is bound for an input; a reshape shares that of its source."""
    while source.op is Op.RESHAPE:
        source = source.src[0]
    return source


def stored_for_custom(order: Sequence[Node]) -> set[Node]:
    """Return the nodes that must be stored because custom kernels read or write them."""
    launches = [n for n in order if n.op is Op.CUSTOM]
    inputs = {bound_input(s) for n in launches for s in n.src}
    return {n for n in inputs if n.op is not Op.BUFFER} | {n for n in order if n.op is Op.RESULT}
