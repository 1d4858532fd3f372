"""The text of a custom kernel: reading what the user wrote, and filling its epilogue slot.

    EPILOGUE(acc, i);     ->     { const float epilogue_value = (acc); const int epilogue_at = (i);
                                   const float v1 = in2[epilogue_at % 64]; ...; out0[...] = v3; }

The epilogue is rendered like the body of any other kernel, with one lane and one element. The text
around it stays as it was written; `#line` gives it a name, so that a build log names the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from scheduler.errors import LoweringError, ModelError
from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.node import Node
from scheduler.ir.ops import Op
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.pack import PackedWeight
from scheduler.loops.place import PlacedBody, merge_ranges
from scheduler.render import opencl_c as clang
from scheduler.render.emitter import Emitter, Val
from scheduler.render.render import Rendered
from scheduler.render.values import Instance, Values

if TYPE_CHECKING:
    from scheduler.kernelize.custom import CustomLaunch

MAX_SOURCE = 65536
_COMMENT = r"//[^\n]*|/\*.*?\*/"
_LITERAL = r'"(?:[^"\\\n]|\\.)*"|' + r"'(?:[^'\\\n]|\\.)*'"
_APART = re.compile(f"(?P<comment>{_COMMENT})|(?P<literal>{_LITERAL})", re.DOTALL)
_IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*", re.ASCII)
# Names of functions, macros and variables in the text that is put around and into the source. Two
# are for sources too, see docs/passes/custom-kernels.md.
_RESERVED = re.compile(r"(?!(m_fma|M_LOAD)$)[mM]_\w+|epilogue_\w+")
_DIRECTIVE = re.compile(r"^[ \t]*#(?![ \t]*pragma\b)", re.MULTILINE)
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_SLOT = "EPILOGUE"
_BEFORE_STATEMENT = frozenset("{};):")


@dataclass(frozen=True, slots=True)
class Slot:
    """An EPILOGUE statement.

    Attributes:
        start, end: where it stands in the source, its semicolon included.
        value, index: its arguments.
    """

    start: int
    end: int
    value: str
    index: str


@dataclass(frozen=True, slots=True)
class Source:
    """The body of a custom kernel, read.

    Attributes:
        text: as written.
        names: identifiers, of comments and literals none.
        slot: of the first output; None if the source stores it itself.
    """

    text: str
    names: frozenset[str]
    slot: Slot | None


@lru_cache(maxsize=256)
def read_source(name: str, text: str) -> Source:
    """Read and check the source of a custom kernel.

    Only its form is checked: that it stays inside the function it is put into. Whether it is
    correct OpenCL C, the device's compiler says.

    Args:
        name: of the kernel, for messages.
        text: body of the kernel.

    Raises:
        ModelError: it is too long, not balanced, or has what a body may not have.
    """
    where = f"custom kernel {name}"
    if not text.strip() or len(text) > MAX_SOURCE:
        raise ModelError(
            f"{where}: expected 1 to {MAX_SOURCE} characters of source, found {len(text)}"
        )
    if any(c not in "\n\t" and not " " <= c <= "~" for c in text) or "\\\n" in text:
        raise ModelError(f"{where}: expected plain ASCII text without continued lines")
    code = _APART.sub(lambda m: _blank(m[0]) if m["comment"] else m[0], text)
    bare = _APART.sub(lambda m: _blank(m[0]), text)
    if any(mark in bare for mark in ('"', "'", "/*")):
        raise ModelError(f"{where}: a comment or literal does not end")
    if _DIRECTIVE.search(bare):
        raise ModelError(
            f"{where}: a preprocessor directive reaches beyond the kernel; only #pragma is taken"
        )
    closing = _matches(where, bare)
    names = frozenset(_IDENTIFIER.findall(bare))
    reserved = sorted(n for n in names if _RESERVED.fullmatch(n))
    if reserved:
        raise ModelError(f"{where}: {reserved[0]} is a name of the compiler's; choose another")
    return Source(text, names, _find_slot(where, code, bare, closing))


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _matches(where: str, bare: str) -> dict[int, int]:
    """Return for each opening bracket where it is closed."""
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
    """Return the arguments between two places: what commas outside of brackets separate."""
    parts, depth, begin = [], 0, start
    for at in range(start, end):
        depth += (bare[at] in _PAIRS) - (bare[at] in ")]}")
        if bare[at] == "," and depth == 0:
            parts.append(code[begin:at])
            begin = at + 1
    return [*parts, code[begin:end]]


# --- rendering --------------------------------------------------------------------------------


class _Operands(Values):
    """Values of an epilogue: weights are read as they are, parameters follow the kernel's own."""

    def __init__(self, emitter: Emitter, value: Node, first: int, lanes: int) -> None:
        super().__init__(emitter, value, [], lanes, _no_loops)
        self.pointers.first = first

    def _pack(self, _: Node) -> PackedWeight | None:
        return None


def _no_loops(node: Node, _: Instance) -> None:
    raise LoweringError(f"{node!r}: a reduction in an epilogue")  # attach_epilogues refuses them


def render_custom(
    launch: CustomLaunch, targets: Sequence[Node], epilogue: PlacedBody | None
) -> Rendered:
    """Return the OpenCL text of a custom kernel.

    Args:
        launch: what it runs.
        targets: whose storage it writes, in the order of its outputs.
        epilogue: placed; None if the first output is stored as it is.
    """
    source = read_source(launch.spec.name, launch.spec.source)
    arguments: list[Node] = list(launch.inputs)
    text = source.text
    title = f'"custom kernel {launch.spec.name}"'
    if source.slot is not None:
        slot = source.slot
        given, lines, more = _block(launch, slot, epilogue)
        arguments += more
        block = "\n".join(["{ " + given, *lines, "}"])
        line = text.count("\n", 0, slot.end) + 1
        text = f"{text[: slot.start]}{block}\n#line {line} {title}\n{text[slot.end :]}"
    body = "\n".join(line if line.startswith("#line") else f"  {line}" for line in text.split("\n"))
    parameters = [f"__global {t.dtype.cl}* out{i}" for i, t in enumerate(targets)]
    parameters += [f"const __global {a.dtype.cl}* in{i}" for i, a in enumerate(arguments)]
    whole = f'({", ".join(parameters)})\n{{\n#line 1 {title}\n{body}\n#line 1 "generated"\n}}\n'
    return Rendered(whole, tuple(arguments), launch.spec.items, (1, launch.spec.lanes))


def _block(
    launch: CustomLaunch, slot: Slot, epilogue: PlacedBody | None
) -> tuple[str, list[str], list[Node]]:
    """Return what a slot stands for: what it is given, statements, the buffers they read."""
    raw, lanes = launch.outputs[0], launch.spec.lanes
    kind = clang.ctype(raw.dtype, lanes)
    value = f"({slot.value}) != 0" if raw.dtype is dt.bool_ else f"({slot.value})"
    if raw.dtype is dt.float16 and epilogue is not None:  # without one, the store rounds
        value = f"m_round_half(({kind}){value})"
    given = f"const {kind} epilogue_value = {value}; const int epilogue_at = ({slot.index});"
    if epilogue is None:
        stored = clang.store("out0", "epilogue_at", "epilogue_value", raw.dtype, lanes)
        return given, [f"  {stored}"], []
    body, _ = merge_ranges(epilogue, None)
    emitter = Emitter()
    operands = _Operands(emitter, body.value, len(launch.inputs), lanes)
    instance = _instance(body, prod(raw.shape), operands)
    for node in scalar_nodes(body.value):
        if node.op is Op.LOAD and node.src[0] is raw:
            known = Val("epilogue_value", lanes > 1, 0)
            emitter.remember(operands.key(node, instance), known)
    operands.evaluate(body.value, instance)
    code = operands.in_lanes(body.value, instance, lanes)
    emitter.statement(clang.store("out0", "epilogue_at", code, body.value.dtype, lanes))
    read = [a for a in operands.pointers.arguments if isinstance(a, Node)]
    return given, emitter.text(1).split("\n"), read


def _instance(body: PlacedBody, size: int, operands: _Operands) -> Instance:
    """Return the ranges of an epilogue at the element, or the first of the lanes, it is given."""
    emitter, lanes = operands.e, operands.lanes
    if lanes == 1:
        at = ixs.new_range(size, "at")
        emitter.name_atom(at, "epilogue_at", 0)
        index = ixs.unflatten(ixs.of(at), [r.size for r in body.ranges])
        return Instance(dict(zip(body.ranges, index, strict=True)), {})
    *outer, last = body.ranges  # lanes divide the last one, see attach_epilogues
    row = ixs.new_range(size // last.size, "row")
    column = ixs.new_range(last.size // lanes, "column")
    emitter.name_atom(row, f"(epilogue_at / {last.size})", 0)
    emitter.name_atom(column, f"(epilogue_at % {last.size} / {lanes})", 0)
    index = ixs.unflatten(ixs.of(row), [r.size for r in outer])
    inner = ixs.add(ixs.mul(ixs.of(column), lanes), ixs.of(operands.lane))
    return Instance(dict(zip(body.ranges, (*index, inner), strict=True)), {})
