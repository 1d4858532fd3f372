"""Verifies a tensor-level graph: operand counts, types and the graph as a whole.

Shapes are checked when a node is made. The verifier runs before the first pass, after the
last one and after fp16 storage; with DEBUG >= 1 and in tests also after each pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.errors import VerifyError
from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import BINARY, COMPARE, SCALAR_LEVEL, UNARY, Op
from scheduler.ir.origin import Origins

_ARITY = (
    dict.fromkeys(UNARY, 1)
    | dict.fromkeys(BINARY, 2)
    | dict.fromkeys((Op.BUFFER, Op.CONST, Op.IOTA), 0)
    | dict.fromkeys((Op.CAST, Op.BITCAST, Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.PAD, Op.SHRINK), 1)
    | dict.fromkeys((Op.FLIP, Op.WINDOW, Op.REDUCE, Op.CONTIGUOUS, Op.WORDS), 1)
    | {Op.WHERE: 3, Op.GATHER: 2, Op.RESULT: 1, Op.ALTERNATIVES: 2}
)
_FLOAT_ONLY = frozenset(
    {Op.SQRT, Op.RECIP, Op.EXP, Op.LOG, Op.SIN, Op.COS, Op.TANH, Op.ERF, Op.DIV}
    | {Op.GELU, Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC, Op.POW}
)
_INT_ONLY = frozenset({Op.IDIV, Op.MOD, Op.SHL, Op.SHR})
_NOT_BOOL = frozenset({Op.NEG, Op.SUB})


def verify(roots: Sequence[Node], after: str = "", origins: Origins | None = None) -> None:
    """Raise VerifyError if a graph is invalid, with node, rule and last pass (`after`)."""
    states: dict[Node, Node] = {}
    for node in toposort(roots):
        problem = _check_arity(node) or _check_types(node) or _check_words(node)
        if problem:
            where = f"after {after}: " if after else ""
            names = ", ".join(origins.of(node)) if origins is not None else ""
            named = f" of {names}" if names else ""
            raise VerifyError(f"{where}{node!r}{named}: {problem}")
        if node.op is Op.ASSIGN:
            other = states.setdefault(node.src[0], node)
            if other is not node:
                raise VerifyError(f"{node.src[0].arg}: assigned twice in one run")


def _check_arity(node: Node) -> str:
    want = _ARITY.get(node.op)
    if node.op is Op.CAT:
        return "" if len(node.src) > 1 else "CAT needs at least two sources"
    if node.op is Op.CUSTOM:
        want = len(node.src)  # any number: the source of the kernel names its operands
    if node.op is not Op.RESULT and any(s.op is Op.CUSTOM for s in node.src):
        return "a launch has no value; RESULT picks one of its outputs"
    if node.op is Op.ASSIGN:
        want = 3 if node.arg is not None and None in node.arg else 2
    if node.op in SCALAR_LEVEL:
        return "a scalar-level op in a tensor graph"
    return "" if want == len(node.src) else f"expected {want} sources, found {len(node.src)}"


def _check_types(node: Node) -> str:
    kinds = [s.dtype for s in node.src]
    if node.op in _FLOAT_ONLY and not node.dtype.is_float:
        return f"{node.op.name} needs a float type, found {node.dtype}"
    if node.op in _INT_ONLY and not node.dtype.is_int:
        return f"{node.op.name} needs an integer type, found {node.dtype}"
    if node.op in _NOT_BOOL and node.dtype is dt.bool_:
        return f"{node.op.name} has no meaning for bool"
    if node.op in COMPARE:
        return "" if node.dtype is dt.bool_ else f"a comparison gives bool, found {node.dtype}"
    if node.op is Op.WHERE:
        ok = kinds[0] is dt.bool_ and kinds[1] is kinds[2] is node.dtype
        return "" if ok else f"WHERE over {kinds} cannot give {node.dtype}"
    if node.op is Op.GATHER:
        ok = kinds[0] is node.dtype and kinds[1].is_int
        return "" if ok else f"GATHER over {kinds} cannot give {node.dtype}"
    if node.op is Op.ASSIGN:
        ok = kinds[0] is kinds[1] is node.dtype and all(k.is_int for k in kinds[2:])
        return "" if ok else f"ASSIGN over {kinds} cannot give {node.dtype}"
    if node.op is Op.RESULT:
        ok = node.dtype is node.src[0].arg.outputs[node.arg][1]
        return "" if ok else f"output {node.arg} of {node.src[0].arg} is not {node.dtype}"
    if node.op in (Op.CAST, Op.BITCAST, Op.CUSTOM, Op.WORDS) or not kinds:
        return ""
    dot = [dt.uint32, dt.int32] if node.dtype is dt.int32 else []
    wanted = dot if node.op is Op.DOT4 else [node.dtype] * len(kinds)
    return "" if kinds == wanted else f"sources {kinds} cannot give {node.dtype}"


def _check_words(node: Node) -> str:
    if node.op is not Op.WORDS:
        return ""
    stored = node.src[0].op is Op.CONTIGUOUS and node.src[0].dtype is dt.uint8
    ok = stored and node.dtype is dt.uint32
    return "" if ok else f"WORDS over {node.src[0]!r} cannot give {node.dtype}"
