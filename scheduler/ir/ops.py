"""Defines the operations of the IR: groups, approximate costs, shape rules, and the order of sums.

Tensor-level ops are those from BUFFER to PACK; their nodes have a shape. Scalar-level ops describe
one iteration inside a kernel (see `kernelize.body`): elementwise ops over LOAD, INDEX and
ACCUMULATE, with shape ().
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from math import prod
from typing import Any, Final, Protocol

from scheduler.errors import VerifyError
from scheduler.ir.dtype import DType, max_value, min_value

Shape = tuple[int, ...]


class Op(Enum):
    """The operation of a node. Comments describe `arg`; for movement ops see `ir.movement`."""

    __hash__ = object.__hash__  # members are unique; Enum's own hash is that of the name, in Python

    # leaves
    BUFFER = auto()  # arg: Buffer
    CONST = auto()  # arg: Python scalar, shape ()
    IOTA = auto()  # arg: n; value i at index i, int32
    # unary
    NEG = auto()
    ABS = auto()
    SQRT = auto()
    RECIP = auto()
    EXP = auto()
    LOG = auto()
    SIN = auto()
    COS = auto()
    TANH = auto()
    ERF = auto()
    GELU = auto()  # x * (1 + erf(x / sqrt 2)) / 2; made by `passes.strength_reduce`
    FLOOR = auto()
    CEIL = auto()
    ROUND = auto()  # halfway cases to even
    TRUNC = auto()
    NOT = auto()  # logical on bool, bitwise on integers
    CAST = auto()  # arg: ROUNDED for a conversion to float16 by the user; else None
    BITCAST = auto()
    # binary
    ADD = auto()
    SUB = auto()
    MUL = auto()  # arg: FUSED for a product inside a sum (`is_fused`); else None
    DIV = auto()  # floats
    IDIV = auto()  # integers, towards zero as in C
    MOD = auto()  # integers, sign of the dividend as in C
    POW = auto()
    MAX = auto()  # NaN if an operand is NaN, also in a reduction; the sign of a zero is unspecified
    MIN = auto()
    LT = auto()
    EQ = auto()
    NE = auto()
    AND = auto()
    OR = auto()
    XOR = auto()
    SHL = auto()
    SHR = auto()
    DOT4 = auto()  # (uint32: four uint8, int32: four int8): the sum of their products, int32
    # ternary
    WHERE = auto()  # (bool, a, b)
    # movement
    RESHAPE = auto()  # arg: shape
    PERMUTE = auto()  # arg: order; result axis i is source axis order[i]
    EXPAND = auto()  # arg: shape; size-1 axes repeat
    PAD = auto()  # arg: (((before, after), ...), fill)
    SHRINK = auto()  # arg: ((start, stop, step), ...), step >= 1
    FLIP = auto()  # arg: axes
    # WINDOW reads at o*stride + k*dilation; its two axes are o (positions) and k (offsets).
    WINDOW = auto()  # arg: (axis, count, size, stride, dilation)
    CAT = auto()  # arg: axis
    # indexed, reducing, state
    GATHER = auto()  # (data, int index); arg: axis; as numpy.take; negative indices count from end
    REDUCE = auto()  # arg: (Op, axes[, parts]), see `parts_of`; the axes keep size 1
    CONTIGUOUS = auto()  # a kernel boundary requested by the user
    # Four neighbors on the last axis as one uint32, the first one in its low bits. It has no
    # storage: readers read the CONTIGUOUS in wider elements.
    WORDS = auto()  # (CONTIGUOUS of uint8,)
    # ASSIGN stores a value in a buffer at the end of the run. arg: None for the whole buffer, else
    # the written region: per axis (start, stop, step), or None for the one axis that the index
    # addresses. Its result is the whole buffer after the write.
    ASSIGN = auto()  # (BUFFER, value[, int index])
    CUSTOM = auto()  # a launch of a hand-written kernel; arg: CustomKernel; read by RESULT only
    RESULT = auto()  # (CUSTOM,); arg: number of the output
    ALTERNATIVES = auto()  # (serial, simt): one value in two forms, for two kinds of device
    # Memory shared by kernels that are lowered together; made while lowering. Source: the stored
    # node that it is read for or holds a part of. arg: (shape, a value that makes it unique).
    PACK = auto()
    # scalar level
    LOAD = auto()  # (BUFFER,); arg: (Ix offset, valid, fill)
    INDEX = auto()  # arg: Ix; an index expression as an int32 value
    ACCUMULATE = auto()  # (value,); arg: (Op, ranges[, parts]): reduction over loop ranges
    STAGE = auto()  # (value,); arg: (None, ranges): values over loop ranges in a private array
    PICK = auto()  # (STAGE,); arg: Ix; one element of the array
    SELECT = auto()  # (a, b); arg: valid; a if the predicate over ranges holds, else b
    TUPLE = auto()  # the values that one loop nest stores; only the root of a body


UNARY = frozenset(
    {Op.NEG, Op.ABS, Op.SQRT, Op.RECIP, Op.EXP, Op.LOG, Op.SIN, Op.COS, Op.TANH, Op.ERF, Op.GELU}
    | {Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC, Op.NOT}
)
COMPARE = frozenset({Op.LT, Op.EQ, Op.NE})
BINARY = frozenset(
    {Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.IDIV, Op.MOD, Op.POW, Op.MAX, Op.MIN, Op.AND, Op.OR, Op.XOR}
    | {Op.SHL, Op.SHR, Op.DOT4}
    | COMPARE
)
ELEMENTWISE = UNARY | BINARY | {Op.WHERE, Op.CAST, Op.BITCAST}
LEAVES = frozenset({Op.BUFFER, Op.CONST, Op.IOTA})
MOVEMENT = frozenset(
    {Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.PAD, Op.SHRINK, Op.FLIP, Op.WINDOW, Op.CAT}
)
# Sums of these ops are contractions.
PRODUCTS = frozenset({Op.MUL, Op.DOT4})
SCALAR_LEVEL = frozenset({Op.LOAD, Op.INDEX, Op.ACCUMULATE, Op.SELECT, Op.STAGE, Op.PICK, Op.TUPLE})
# scalar ops that run a loop; arg[1] holds their ranges
LOOPS = frozenset({Op.ACCUMULATE, Op.STAGE})
REDUCERS = frozenset({Op.ADD, Op.MUL, Op.MAX, Op.MIN})

# Argument of a CAST to float16 that the user requested. Other such casts end fp16 operations.
ROUNDED = "rounded"
# Approximate cost of one evaluation, in adds; only used for decisions about kernels.
COST = (
    dict.fromkeys((Op.CAST, Op.BITCAST), 0)
    | dict.fromkeys((Op.DIV, Op.RECIP, Op.SQRT), 4)
    | dict.fromkeys((Op.IDIV, Op.MOD), 8)
    | {Op.EXP: 10, Op.LOG: 12, Op.POW: 24}
    | dict.fromkeys((Op.SIN, Op.COS, Op.TANH, Op.ERF, Op.GELU), 16)
)


def identity(op: Op, dtype: DType) -> float | int:
    """Return the neutral element of a reduction."""
    if op is Op.ADD:
        return 0
    if op is Op.MUL:
        return 1
    return min_value(dtype) if op is Op.MAX else max_value(dtype)


class Source(Protocol):
    """The part of `scheduler.ir.node.Node` that this module needs."""

    op: Op
    arg: Any
    shape: Shape


# --- The order of float sums, the same on every device ----------------------------------------
#
#     REDUCE (ADD, axes)       any order: each device may add parts of it first
#     REDUCE (ADD, axes, 1)    ((0 + x0) + x1) + x2 ...   the axes as loops, the first outermost
#     REDUCE (ADD, axes, 16)   16 such sums, of every 16th element of the last axis; then
#                              s[i] + s[i + 8], of these 8 s[i] + s[i + 4], ... down to one; then
#                              the remaining elements of the last axis, one by one
#
# A product is FUSED with the addition of its sum only if the graph says so: fma(a, b, sum) rounds
# once.

# Number of partial sums: the lanes of the widest vector, so narrower ones divide it.
PARTS: Final = 16
# Argument of a MUL inside a sum that has no rounded value of its own.
FUSED: Final = "fused"


def parts_of(node: Source) -> int:
    """Return the number of partial sums of a REDUCE or ACCUMULATE; 0 if its order is free."""
    return int(node.arg[2]) if len(node.arg) > 2 else 0


def is_fused(node: Source) -> bool:
    """Whether a node is a product that is rounded together with the sum that reads it."""
    return node.op is Op.MUL and node.arg == FUSED


Sources = tuple[Source, ...]


def infer_shape(op: Op, src: Sources, arg: Any) -> Shape:
    """Return a node's shape; raise VerifyError if sources or argument do not fit the op."""
    if op in _SHAPE_RULES:
        return _SHAPE_RULES[op](src, arg)
    if op in ELEMENTWISE:
        shapes = {s.shape for s in src}
        if len(shapes) != 1:
            raise VerifyError(f"{op.name}: sources must have one shape, found {sorted(shapes)}")
        return src[0].shape
    if op in SCALAR_LEVEL or op is Op.CONST:
        return ()
    raise VerifyError(f"{op.name}: no shape rule")


def _iota(_: Sources, arg: Any) -> Shape:
    if arg > 1 << 31:
        raise VerifyError(f"positions along {arg} elements do not fit into int32; work on parts")
    return (int(arg),)


def _reshape(src: Sources, arg: Any) -> Shape:
    if prod(arg) != prod(src[0].shape):
        raise VerifyError(
            f"RESHAPE: {src[0].shape} has {prod(src[0].shape)} elements, {arg} has {prod(arg)}"
        )
    return tuple(arg)


def _permute(src: Sources, arg: Any) -> Shape:
    if sorted(arg) != list(range(len(src[0].shape))):
        raise VerifyError(
            f"PERMUTE: order {arg} is not a permutation of the axes of {src[0].shape}"
        )
    return tuple(src[0].shape[a] for a in arg)


def _expand(src: Sources, arg: Any) -> Shape:
    ok = len(arg) == len(src[0].shape) and all(
        s in (1, t) for s, t in zip(src[0].shape, arg, strict=True)
    )
    if not ok:
        raise VerifyError(f"EXPAND: {src[0].shape} does not expand to {arg}")
    return tuple(arg)


def _pad(src: Sources, arg: Any) -> Shape:
    pairs = arg[0]
    if len(pairs) != len(src[0].shape) or any(b < 0 or e < 0 for b, e in pairs):
        raise VerifyError(f"PAD: widths {pairs} do not fit shape {src[0].shape}")
    return tuple(s + b + e for s, (b, e) in zip(src[0].shape, pairs, strict=True))


def _shrink(src: Sources, arg: Any) -> Shape:
    if len(arg) != len(src[0].shape) or any(
        not (0 <= a <= b <= s and st >= 1) for (a, b, st), s in zip(arg, src[0].shape, strict=True)
    ):
        raise VerifyError(f"SHRINK: {arg} does not fit shape {src[0].shape}")
    return tuple(-(-(b - a) // st) for a, b, st in arg)


def _flip(src: Sources, arg: Any) -> Shape:
    if any(not 0 <= a < len(src[0].shape) for a in arg):
        raise VerifyError(f"FLIP: axes {arg} do not fit shape {src[0].shape}")
    return src[0].shape


def _window(src: Sources, arg: Any) -> Shape:
    axis, count, size, stride, dilation = arg
    shape = src[0].shape
    if not 0 <= axis < len(shape) or (count - 1) * stride + (size - 1) * dilation >= shape[axis]:
        raise VerifyError(f"WINDOW: {arg} reaches beyond axis {axis} of {shape}")
    return (*shape[:axis], count, size, *shape[axis + 1 :])


def _cat(src: Sources, arg: Any) -> Shape:
    first = src[0].shape
    for s in src:
        if len(s.shape) != len(first) or any(
            i != arg and a != b for i, (a, b) in enumerate(zip(s.shape, first, strict=True))
        ):
            raise VerifyError(f"CAT: shapes {[s.shape for s in src]} differ outside axis {arg}")
    return (*first[:arg], sum(s.shape[arg] for s in src), *first[arg + 1 :])


def _gather(src: Sources, arg: Any) -> Shape:
    data, index = src
    if not 0 <= arg < len(data.shape):
        raise VerifyError(f"GATHER: axis {arg} does not fit shape {data.shape}")
    return (*data.shape[:arg], *index.shape, *data.shape[arg + 1 :])


def _reduce(src: Sources, arg: Any) -> Shape:
    op, axes = arg[:2]
    if op not in REDUCERS or any(not 0 <= a < len(src[0].shape) for a in axes):
        raise VerifyError(f"REDUCE: {op} over axes {axes} does not fit shape {src[0].shape}")
    return tuple(1 if i in axes else s for i, s in enumerate(src[0].shape))


def _words(src: Sources, _: Any) -> Shape:
    shape = src[0].shape
    if not shape or shape[-1] % 4:
        raise VerifyError(f"WORDS: the last axis of shape {shape} is not a multiple of 4")
    return (*shape[:-1], shape[-1] // 4)


def _assign(src: Sources, arg: Any) -> Shape:
    target, value = src[0], src[1]
    region = target.shape if arg is None else _region_shape(target.shape, arg, src[2:])
    if target.op is not Op.BUFFER or region != value.shape:
        raise VerifyError(
            f"ASSIGN: target {target.op.name}{target.shape} cannot take a value {value.shape}"
        )
    return target.shape


def _region_shape(shape: Shape, region: Any, index: Sources) -> Shape:
    """Return the shape of the values written to a region of a buffer."""
    picked = [i for i, r in enumerate(region) if r is None]
    known = [(r, s) for r, s in zip(region, shape, strict=False) if r is not None]
    fits = all(0 <= a <= b <= s and st >= 1 for (a, b, st), s in known)
    if len(region) != len(shape) or len(picked) != len(index) or len(index) > 1 or not fits:
        raise VerifyError(f"ASSIGN: region {region} with {len(index)} indices does not fit {shape}")
    if any(len(i.shape) != 1 for i in index):
        raise VerifyError(f"ASSIGN: expected an index of one axis, found {index[0].shape}")
    return tuple(index[0].shape[0] if r is None else -(-(r[1] - r[0]) // r[2]) for r in region)


def _alternatives(src: Sources, _: Any) -> Shape:
    if len({s.shape for s in src}) != 1:
        raise VerifyError(f"ALTERNATIVES: forms have shapes {[s.shape for s in src]}; expected one")
    return src[0].shape


def _result(src: Sources, arg: Any) -> Shape:
    if src[0].op is not Op.CUSTOM or not 0 <= arg < len(src[0].arg.outputs):
        raise VerifyError(f"RESULT: {src[0].op.name} has no output {arg}")
    return tuple(src[0].arg.outputs[arg][0])


_SHAPE_RULES: dict[Op, Callable[[Sources, Any], Shape]] = {
    Op.BUFFER: lambda _, arg: tuple(arg.shape),
    Op.IOTA: _iota,
    Op.RESHAPE: _reshape,
    Op.PERMUTE: _permute,
    Op.EXPAND: _expand,
    Op.PAD: _pad,
    Op.SHRINK: _shrink,
    Op.FLIP: _flip,
    Op.WINDOW: _window,
    Op.CAT: _cat,
    Op.GATHER: _gather,
    Op.REDUCE: _reduce,
    Op.CONTIGUOUS: lambda src, _: src[0].shape,
    Op.WORDS: _words,
    Op.PACK: lambda _, arg: tuple(arg[0]),
    Op.ASSIGN: _assign,
    Op.CUSTOM: lambda *_: (),  # a launch has no value
    Op.RESULT: _result,
    Op.ALTERNATIVES: _alternatives,
}
