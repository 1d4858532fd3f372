"""Interprets graphs with numpy; this defines the IR, and optimizations are tested against it.

The code is simple and slow, with one exception: a sum of products is computed by `numpy.einsum`,
because the broadcast product of a convolution would not fit in memory. Results of type float16 are
computed in float32, sums included, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import erf as _erf
from math import sqrt
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from scheduler.errors import SchedulerError
from scheduler.ir import dtype as dt
from scheduler.ir.dtype import DType
from scheduler.ir.node import Buffer, Node, toposort
from scheduler.ir.ops import ELEMENTWISE, PRODUCTS, Op, identity
from scheduler.ir.rewrite import SERIAL, keep_form
from scheduler.ir.rounding import rounds

Array = NDArray[Any]

_CUSTOM = frozenset({Op.CUSTOM, Op.RESULT})
_np_erf = np.frompyfunc(_erf, 1, 1)


def _trunc_div(a: Array, b: Array) -> Array:
    divisor = np.where(b == 0, 1, b).astype(b.dtype)
    quotient = a // divisor
    inexact = (quotient * divisor != a) & ((a < 0) != (divisor < 0))
    # without abs, which the smallest int does not have
    return np.asarray(quotient + inexact).astype(a.dtype)


def _trunc_mod(a: Array, b: Array) -> Array:
    return np.asarray(np.fmod(a, np.where(b == 0, 1, b))).astype(a.dtype)


def erf(x: Array) -> Array:
    """Return the error function of x (any float dtype), computed in float64."""
    return np.asarray(_np_erf(x.astype(np.float64)), dtype=np.float64).astype(x.dtype)


def gelu(x: Array) -> Array:
    """Return x (1 + erf(x / sqrt 2)) / 2 (any float dtype), computed in float64."""
    wide = x.astype(np.float64)
    return np.asarray(wide * 0.5 * (1.0 + erf(wide * sqrt(0.5)))).astype(x.dtype)


def unpacked(words: Array) -> Array:
    """Return 32-bit words as four 8-bit integers each, on a new last axis (int64)."""
    kind = np.uint8 if words.dtype == np.uint32 else np.int8
    return np.asarray(words, order="C")[..., None].view(kind).astype(np.int64)


def dot4(a: Array, b: Array) -> Array:
    """Return the sums of the products of four unsigned and four signed bytes each (int32)."""
    return np.asarray((unpacked(a) * unpacked(b)).sum(-1)).astype(np.int32)


FUNCTIONS: dict[Op, Callable[..., Any]] = {
    Op.NEG: np.negative,
    Op.ABS: np.abs,
    Op.SQRT: np.sqrt,
    Op.RECIP: lambda a: a.dtype.type(1) / a,
    Op.EXP: np.exp,
    Op.LOG: np.log,
    Op.SIN: np.sin,
    Op.COS: np.cos,
    Op.TANH: np.tanh,
    Op.ERF: erf,
    Op.GELU: gelu,
    Op.FLOOR: np.floor,
    Op.CEIL: np.ceil,
    Op.ROUND: np.rint,
    Op.TRUNC: np.trunc,
    Op.NOT: np.invert,
    Op.ADD: np.add,
    Op.SUB: np.subtract,
    Op.MUL: np.multiply,
    Op.DIV: np.divide,
    Op.IDIV: _trunc_div,
    Op.MOD: _trunc_mod,
    Op.POW: np.power,
    Op.MAX: np.maximum,
    Op.MIN: np.minimum,
    Op.LT: np.less,
    Op.EQ: np.equal,
    Op.NE: np.not_equal,
    Op.AND: np.bitwise_and,
    Op.OR: np.bitwise_or,
    Op.XOR: np.bitwise_xor,
    Op.SHL: np.left_shift,
    Op.SHR: np.right_shift,
    Op.DOT4: dot4,
    Op.WHERE: np.where,
}
_REDUCE: dict[Op, Callable[..., Any]] = {
    Op.ADD: np.add.reduce,
    Op.MUL: np.multiply.reduce,
    Op.MAX: np.maximum.reduce,
    Op.MIN: np.minimum.reduce,
}


def _window(x: Array, axis: int, count: int, size: int, stride: int, dilation: int) -> Array:
    step = x.strides[axis]
    return as_strided(
        x,
        (*x.shape[:axis], count, size, *x.shape[axis + 1 :]),
        (*x.strides[:axis], step * stride, step * dilation, *x.strides[axis + 1 :]),
        writeable=False,
    )


def _movement(node: Node, src: list[Array]) -> Array:
    x, arg = src[0], node.arg
    if node.op is Op.RESHAPE:
        return x.reshape(arg)
    if node.op is Op.PERMUTE:
        return x.transpose(arg)
    if node.op is Op.EXPAND:
        return np.broadcast_to(x, arg)
    if node.op is Op.PAD:
        return np.pad(x, arg[0], constant_values=arg[1])
    if node.op is Op.SHRINK:
        return x[tuple(slice(a, b, st) for a, b, st in arg)]
    if node.op is Op.FLIP:
        return np.flip(x, arg)
    if node.op is Op.WINDOW:
        return _window(x, *arg)
    return np.concatenate(src, axis=arg)


def _contract(a: Array, b: Array, axes: tuple[int, ...]) -> Array:
    """Return sum(a * b, axes, keepdims) without storing a * b; repeated axes have stride 0."""
    out = [i for i in range(a.ndim) if i not in axes]
    if 0 in a.shape:
        return np.zeros([1 if i in axes else a.shape[i] for i in range(a.ndim)], b.dtype)
    # A reduced axis along which both factors repeat is left out of einsum and multiplies the sum.
    scale = 1
    operands: list[Any] = []
    for x in (a, b):
        used = [i for i in range(x.ndim) if x.strides[i] != 0 and x.shape[i] > 1]
        index = tuple(slice(None) if i in used else 0 for i in range(x.ndim))
        operands += [x[index], used]
    present = set(operands[1]) | set(operands[3])
    for i in axes:
        scale *= 1 if i in present else a.shape[i]
    kept = [i for i in out if i in present]
    if a.dtype != b.dtype:  # packed bytes: sums of fewer than 2^37 products are exact in float64
        operands[0], operands[2] = (unpacked(o).astype(np.float64) for o in operands[::2])
        operands[1], operands[3] = ([*used, a.ndim] for used in operands[1::2])
        total = np.einsum(*operands, kept, optimize=True).astype(np.int64).astype(np.int32)
    else:
        total = np.einsum(*operands, kept, optimize=True)
    if scale != 1:
        total = total * np.asarray(scale).astype(total.dtype)
    full = [1 if i in axes or i not in present else a.shape[i] for i in range(a.ndim)]
    target = [1 if i in axes else a.shape[i] for i in range(a.ndim)]
    return np.broadcast_to(total.reshape(full), target)


def _reduce(x: Array, op: Op, axes: tuple[int, ...], dtype: DType) -> Array:
    """Return a reduction that keeps its axes; an empty one gives the op's neutral element."""
    more = {"initial": identity(op, dtype)} if 0 in x.shape else {}
    return np.asarray(_REDUCE[op](x, axis=axes, keepdims=True, **more)).astype(dtype.np, copy=False)


def _write_region(region: Any, src: list[Array]) -> Array:
    """Return a buffer after a write to a region; among equal indices the last one wins."""
    whole, value = src[0].copy(), src[1]
    key: list[Any] = [slice(None) if r is None else slice(*r) for r in region]
    if None not in region:
        whole[tuple(key)] = value
        return whole
    axis = region.index(None)
    size = whole.shape[axis]
    for i, row in enumerate(src[2].tolist()):
        at = row + size if row < 0 else row
        if 0 <= at < size:  # indices outside the axis are not written
            key[axis] = at
            whole[tuple(key)] = value.take(i, axis)
    return whole


def evaluate_node(node: Node, src: list[Array]) -> Array:
    """Return the value of a node, with its shape and dtype, from the values of its sources."""
    op = node.op
    if op is Op.CONST:
        return np.asarray(node.arg, dtype=node.dtype.np)
    if op is Op.IOTA:
        return np.arange(node.arg, dtype=node.dtype.np)
    if op is Op.CAST:
        return src[0].astype(node.dtype.np)
    if op in (Op.BITCAST, Op.WORDS):
        return np.asarray(src[0], order="C").reshape(-1).view(node.dtype.np).reshape(node.shape)
    if node.dtype is dt.float16 and rounds(node):
        src = [s.astype(np.float32) for s in src]
    if op in ELEMENTWISE:
        return np.asarray(FUNCTIONS[op](*src)).astype(node.dtype.np, copy=False)
    if op is Op.REDUCE:
        return _reduce(src[0], node.arg[0], node.arg[1], node.dtype)
    if op is Op.GATHER:
        return np.take(src[0], src[1], axis=node.arg)
    if op is Op.CONTIGUOUS:
        return src[0]
    if op is Op.ASSIGN:
        return src[1] if node.arg is None else _write_region(node.arg, src)
    return _movement(node, src)


def _run_custom(node: Node, src: list[Any]) -> Any:
    """Return the outputs of a CUSTOM node as a tuple, or the output that a RESULT node picks."""
    return node.arg.evaluate(src) if node.op is Op.CUSTOM else src[0][node.arg]


def _is_contraction(node: Node) -> bool:
    return (
        node.op is Op.REDUCE
        and node.arg[0] is Op.ADD
        and node.src[0].op in PRODUCTS
        and node.dtype is not dt.float16  # in float16 each product is rounded
        and (node.dtype.is_float or (node.dtype.is_int and node.src[0].dtype is node.dtype))
    )


def _given(data: Any, node: Node) -> Array:
    """Return the values of a buffer; a partial input is padded with zeros."""
    values = np.asarray(data, dtype=node.dtype.np)
    if node.arg.partial:
        values = np.pad(values, (0, node.shape[0] - len(values)))
    return values.reshape(node.shape)


def evaluate(roots: Sequence[Node], buffers: Mapping[Buffer, Array] | None = None) -> list[Array]:
    """Return the values of nodes, given those of inputs and states; weights have their own.

    The caller stores the results of ASSIGN nodes. Raises SchedulerError if a buffer has no value,
    or a custom kernel has no reference.
    """
    given = buffers or {}
    order = toposort(roots)
    if any(n.op is Op.ALTERNATIVES for n in order):
        new = keep_form(roots, SERIAL)  # the form with less work for one core
        roots = [new[r] for r in roots]
        order = toposort(roots)
    contracted = {n.src[0] for n in order if _is_contraction(n)}
    contracted -= {s for n in order if not _is_contraction(n) for s in n.src} | set(roots)
    reads = {
        n: n.src[0].src if _is_contraction(n) and n.src[0] in contracted else n.src for n in order
    }
    uses: dict[Node, int] = dict.fromkeys(roots, 1)
    for n in order:
        for s in reads[n] if n not in contracted else ():
            uses[s] = uses.get(s, 0) + 1
    values: dict[Node, Any] = {}
    with np.errstate(all="ignore"):
        for node in order:
            if node.op is Op.BUFFER:
                data = given.get(node.arg, node.arg.data)
                if node.arg.kind == "pending":  # only ever written
                    data = np.zeros(node.shape, node.dtype.np)
                if data is None:
                    raise SchedulerError(f"{node.arg}: no value given to the interpreter")
                values[node] = _given(data, node)
            elif node in contracted:
                continue  # its reduction reads the two factors directly
            elif reads[node] is not node.src:
                a, b = (values[s] for s in reads[node])
                values[node] = _contract(a, b, node.arg[1])
            else:
                evaluate_one = _run_custom if node.op in _CUSTOM else evaluate_node
                values[node] = evaluate_one(node, [values[s] for s in node.src])
            for s in reads[node]:  # free values without further readers
                uses[s] -= 1
                if uses[s] == 0:
                    del values[s]
    return [values[r] for r in roots]
