"""The operations of the IR, their groups, and their approximate costs.

Tensor level: every op below up to ASSIGN; a node has a shape. Scalar level (inside a kernel, see
`kernelize.body`): elementwise ops over LOAD, INDEX and ACCUMULATE; shape is ().
"""

from __future__ import annotations

from enum import Enum, auto

from scheduler.ir.dtype import DType, max_value, min_value

Shape = tuple[int, ...]


class Op(Enum):
    """What a node computes. Comments give `arg`; see `ir.ranges` for movement ops."""

    __hash__ = object.__hash__  # members are unique; Enum's own hashes the name, in Python

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
    GELU = auto()  # x * (1 + erf(x / sqrt 2)) / 2; found by `passes.strength_reduce`
    FLOOR = auto()
    CEIL = auto()
    ROUND = auto()  # half to even
    TRUNC = auto()
    NOT = auto()  # logical on bool, bitwise on integers
    CAST = auto()  # arg: ROUNDED, of a conversion to half that was asked for; else None
    BITCAST = auto()
    # binary
    ADD = auto()
    SUB = auto()
    MUL = auto()  # arg: FUSED, of a product that is part of a sum (`ir.ordered`); else None
    DIV = auto()  # floats
    IDIV = auto()  # integers, towards zero as in C
    MOD = auto()  # integers, sign of the dividend as in C
    POW = auto()
    MAX = auto()  # NaN if an operand is NaN, also in a reduction; which of two zeros is not said
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
    # WINDOW reads at o*stride + k*dilation for its two axes o (positions) and k (offsets).
    WINDOW = auto()  # arg: (axis, count, size, stride, dilation)
    CAT = auto()  # arg: axis
    # indexed, reducing, state
    GATHER = auto()  # (data, int index); arg: axis; numpy.take, negative indices count from the end
    REDUCE = auto()  # arg: (Op, axes), parts where ordered (`ir.ordered`); axes keep size 1
    CONTIGUOUS = auto()  # a kernel boundary asked for by the user
    # Four neighbours of the last axis as one uint32, the first in its low bits. Readers read the
    # storage of the CONTIGUOUS in wider elements.
    WORDS = auto()  # (CONTIGUOUS of uint8,)
    # ASSIGN leaves a value in a buffer after the run. arg: None, or where the value goes: per axis
    # (start, stop, step), or None for the one axis that the index picks from. Its result is the
    # whole buffer after the write.
    ASSIGN = auto()  # (BUFFER, value[, int index])
    CUSTOM = auto()  # a launch of a hand-written kernel; arg: CustomKernel; read by RESULT only
    RESULT = auto()  # (CUSTOM,); arg: number of the output
    ALTERNATIVES = auto()  # (serial, simt): one value computed in two ways, for two kinds of device
    # (stored node that it is read for, or holds a part of,); arg: (shape, what tells it from
    # others): memory of kernels that know each other; made while lowering
    PACK = auto()
    # scalar level
    LOAD = auto()  # (BUFFER,); arg: (Ix offset, valid, fill)
    INDEX = auto()  # arg: Ix; an index expression as an int32 value
    ACCUMULATE = auto()  # (value,); arg: (Op, ranges), and parts: reduction over loop ranges
    STAGE = auto()  # (value,); arg: (None, ranges): values over loop ranges in a private array
    PICK = auto()  # (STAGE,); arg: Ix; one element of the array
    SELECT = auto()  # (a, b): arg: valid; a where the predicate over ranges holds, else b
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
MOVEMENT = frozenset(
    {Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.PAD, Op.SHRINK, Op.FLIP, Op.WINDOW, Op.CAT}
)
# A sum of these is a contraction.
PRODUCTS = frozenset({Op.MUL, Op.DOT4})
SCALAR_LEVEL = frozenset({Op.LOAD, Op.INDEX, Op.ACCUMULATE, Op.SELECT, Op.STAGE, Op.PICK, Op.TUPLE})
LOOPS = frozenset({Op.ACCUMULATE, Op.STAGE})  # scalar ops that run a loop; arg[1] are its ranges
REDUCERS = frozenset({Op.ADD, Op.MUL, Op.MAX, Op.MIN})

# Of a CAST to half: somebody asked for the rounding; other casts end operations on halves.
ROUNDED = "rounded"
# Approximate cost of one evaluation in units of one add: for decisions about kernels only.
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
