"""Writes IR values and operations as OpenCL C, for scalars and vectors.

Conditions are ints in registers: 0 or 1 as scalars, 0 or -1 in vector lanes, as OpenCL comparisons
return them. Signed overflow is undefined in C, so operations that could wrap use unsigned types
(`_wrapped`). An fp16 value is a float in registers; graph nodes widen and round it
(`passes.halves`). FP contraction is off, so fused operations are explicit calls of m_fma.
"""

from __future__ import annotations

import math

from scheduler.errors import LoweringError
from scheduler.ir import dtype as dt
from scheduler.ir.dtype import DType
from scheduler.ir.node import Node
from scheduler.ir.ops import COMPARE, Op
from scheduler.ir.rounding import rounds

_INT_OF_SIZE = {1: "char", 2: "short", 4: "int", 8: "long"}
_INFIX = {
    Op.ADD: "+",
    Op.SUB: "-",
    Op.MUL: "*",
    Op.DIV: "/",
    Op.AND: "&",
    Op.OR: "|",
    Op.XOR: "^",
    Op.SHL: "<<",
    Op.SHR: ">>",
    Op.LT: "<",
    Op.EQ: "==",
    Op.NE: "!=",
}
# Results can leave the range of the type. C also forbids shifting negative numbers left.
_WRAPS = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.SHL})
# Arithmetic on bools is logic, as in numpy. Because true is 1 or -1, C's + and * would be wrong.
_LOGIC = {Op.ADD: "|", Op.MUL: "&", Op.MAX: "|", Op.MIN: "&"}
_CALL = {
    Op.SQRT: "m_sqrt",
    Op.EXP: "m_exp",
    Op.LOG: "m_log",
    Op.SIN: "m_sin",
    Op.COS: "m_cos",
    Op.TANH: "m_tanh",
    Op.ERF: "m_erf",
    Op.GELU: "m_gelu",
    Op.FLOOR: "m_floor",
    Op.CEIL: "m_ceil",
    Op.ROUND: "m_rint",
    Op.TRUNC: "m_trunc",
    Op.POW: "m_pow",
    Op.DOT4: "m_dot4",
}


def register(dtype: DType) -> DType:
    """Return the type of a value in registers."""
    if dtype is dt.float16:
        return dt.float32
    return dt.int32 if dtype is dt.bool_ else dtype


def ctype(dtype: DType, lanes: int) -> str:
    """Return the C type of a value in registers."""
    return register(dtype).cl + (str(lanes) if lanes > 1 else "")


def buffer_type(dtype: DType, *, written: bool) -> str:
    """Return the C type of a kernel parameter for a buffer of stored elements."""
    return f"{'' if written else 'const '}__global {dtype.cl}*"


def function(name: str, dtype: DType) -> str:
    """Return the name of a prelude function for a type."""
    return name if dtype is not dt.float64 else f"m_double_{name.removeprefix('m_')}"


def literal(value: float | int | bool, dtype: DType) -> str:
    """Return a scalar constant in C."""
    if dtype is dt.bool_:
        return "1" if value else "0"
    if dtype.is_int:
        suffix = {"int64": "L", "uint64": "UL", "uint32": "u"}.get(dtype.name, "")
        if dtype.name == "int32" and value == -(2**31):
            return "(-2147483647 - 1)"
        return f"{int(value)}{suffix}" if value >= 0 else f"({int(value)}{suffix})"
    if math.isnan(value):  # the bits of NAN differ between drivers
        is_double = dtype is dt.float64
        return "as_double(0x7ff8000000000000L)" if is_double else "as_float(0x7fc00000)"
    if not math.isfinite(value):
        text = "INFINITY" if value > 0 else "-INFINITY"
        wide = "(double)" if dtype is dt.float64 else ""
        return f"({wide}{text})" if wide or text[0] == "-" else text
    text = float(value).hex() + ("" if dtype is dt.float64 else "f")
    return f"({text})" if text.startswith("-") else text


def widen(code: str, dtype: DType, lanes: int) -> str:
    """Return a scalar repeated in all lanes."""
    if dtype is dt.bool_:
        return f"(int{lanes})(-({code}))"
    return f"({ctype(dtype, lanes)})({code})"


def mask_for(condition: str, dtype: DType, lanes: int) -> str:
    """Return a mask of int lanes converted to the lane width that `select` requires."""
    kind = _INT_OF_SIZE[register(dtype).itemsize]
    return condition if lanes == 1 or kind == "int" else f"M_CONVERT({kind}{lanes}, {condition})"


def choose(condition: str, yes: str, no: str, dtype: DType, lanes: int) -> str:
    """Return `condition ? yes : no` by lane; all operands have the same number of lanes."""
    if lanes == 1:
        return f"({condition} ? {yes} : {no})"
    return f"M_CHOOSE({mask_for(condition, dtype, lanes)}, {yes}, {no})"


def cast(code: str, source: DType, target: DType, lanes: int) -> str:
    """Return a conversion between register types."""
    a, b = register(source), register(target)
    if target is dt.bool_:
        test = f"({code} != {widen('0', source, lanes) if lanes > 1 else '0'})"
        return test if lanes == 1 or a.itemsize == 4 else f"M_CONVERT(int{lanes}, {test})"
    if source.is_float and target.is_int and target.itemsize < 4:
        # Compilers assume that the value fits the narrow type. Converting to int32 first is safe.
        code, a = cast(code, source, dt.int32, lanes), dt.int32
    if source is dt.bool_ and lanes > 1:
        return f"M_CONVERT({b.cl}{lanes}, -{code})"
    if target is dt.float16 and source is not dt.float16:
        return f"m_round_half({cast(code, source, dt.float32, lanes)})"
    if a is b:
        return code
    return f"({b.cl})({code})" if lanes == 1 else f"M_CONVERT({b.cl}{lanes}, {code})"


def operation(node: Node, src: list[str], lanes: int) -> str:
    """Return an elementwise node's expression; a LoweringError means a bug in the compiler."""
    op, kind = node.op, node.src[-1].dtype
    if node.dtype is dt.float16 and rounds(node):
        raise LoweringError(f"{op.name}: fp16 arithmetic that no pass has widened")
    if op in (Op.CAST, Op.BITCAST):
        return _conversion(node, src[0], lanes)
    if op in COMPARE:
        return _compare(op, src, kind, lanes)
    if op is Op.WHERE:
        return choose(src[0], src[1], src[2], node.dtype, lanes)
    if kind is dt.bool_ and op in _LOGIC:
        return f"({src[0]} {_LOGIC[op]} {src[1]})"
    if op in (Op.MAX, Op.MIN):
        risks = [_may_be_nan(s) for s in node.src]
        a, b = src if risks[0] or not risks[1] else src[::-1]
        return _extreme(op, a, b, kind, lanes, nan=all(risks))
    if op in (Op.IDIV, Op.MOD):
        known = node.src[1].op is Op.CONST and node.src[1].arg not in (0, -1)
        return _divide(op, src[0], src[1], kind, lanes, known=known)
    if op in _INFIX:
        sign, (a, b) = _INFIX[op], src
        wraps = op in _WRAPS and kind.is_int
        return _wrapped(sign, a, b, kind, lanes) if wraps else f"({a} {sign} {b})"
    if op is Op.GELU and kind is dt.float64:
        return f"({src[0]} * 0.5 * (m_double_erf({src[0]} * 0.70710678118654752440) + 1.0))"
    if op in _CALL:
        return f"{function(_CALL[op], kind)}({', '.join(src)})"
    return _unary(op, src[0], kind, lanes)


def quotient(dividend: str, parts: tuple[float, float], lanes: int) -> str:
    """Return the quotient by a constant, with `parts` from `scheduler.render.quotient`."""
    high, low = (literal(part, dt.float32) for part in parts)
    if lanes > 1:
        high, low = (widen(part, dt.float32, lanes) for part in (high, low))
    return f"m_fused({dividend}, {high}, {dividend} * {low})"


def _wrapped(sign: str, a: str, b: str, kind: DType, lanes: int) -> str:
    """Return integer arithmetic modulo 2 to the power of the type's width."""
    if kind.cl == kind.arithmetic or (kind.is_unsigned and lanes > 1):
        return f"({a} {sign} {b})"
    if lanes > 1:
        return f"as_{kind.cl}{lanes}(as_u{kind.cl}{lanes}({a}) {sign} as_u{kind.cl}{lanes}({b}))"
    return f"({kind.cl})(({kind.arithmetic}){a} {sign} ({kind.arithmetic}){b})"


def _negated(a: str, kind: DType, lanes: int) -> str:
    if not kind.is_int:
        return f"(-{a})"
    return _wrapped("-", widen("0", kind, lanes) if lanes > 1 else "0", a, kind, lanes)


def _divide(op: Op, a: str, b: str, kind: DType, lanes: int, *, known: bool) -> str:
    """Return an integer quotient or remainder; x86 traps on a / 0 and on the smallest int / -1.

    Division by 0 divides by 1, as in the interpreter. Other divisors that are `known` are safe.
    """
    sign = "/" if op is Op.IDIV else "%"
    if known:
        return f"({a} {sign} {b})"

    def is_equal(text: str) -> str:
        test = f"({b} == {widen(text, kind, lanes) if lanes > 1 else text})"
        return test if lanes == 1 else _lane_test(test, kind, lanes)

    one = widen("1", kind, lanes) if lanes > 1 else "1"
    if kind.is_unsigned:
        return f"({a} {sign} {choose(is_equal('0'), one, b, kind, lanes)})"
    unsafe = f"({is_equal('0')} | {is_equal('(-1)')})"
    result = f"({a} {sign} {choose(unsafe, one, b, kind, lanes)})"
    if op is Op.MOD:  # the remainder by 1 equals that by -1, which is 0
        return result
    return choose(is_equal("(-1)"), _negated(a, kind, lanes), result, kind, lanes)


def _unary(op: Op, a: str, kind: DType, lanes: int) -> str:
    """Return a unary operation, or raise LoweringError if there is no rendering."""
    if op is Op.NEG:
        return _negated(a, kind, lanes)
    if op is Op.ABS:
        if kind.is_float:
            return f"{function('m_fabs', kind)}({a})"
        if kind.is_unsigned or kind is dt.bool_:
            return a
        return choose(_negative(a, kind, lanes), _negated(a, kind, lanes), a, kind, lanes)
    if op is Op.RECIP:
        one = literal(1.0, kind)
        return f"({one if lanes == 1 else widen(one, kind, lanes)} / {a})"
    if op is Op.NOT:
        return f"(!{a})" if kind is dt.bool_ and lanes == 1 else f"(~{a})"
    raise LoweringError(f"{op.name}: no OpenCL rendering")


def _negative(a: str, kind: DType, lanes: int) -> str:
    if lanes == 1:
        return f"({a} < 0)"
    return _lane_test(f"({a} < {widen('0', kind, lanes)})", kind, lanes)


def _lane_test(test: str, kind: DType, lanes: int) -> str:
    """Convert the result of a vector comparison, as wide as its operands, to int lanes."""
    return test if register(kind).itemsize == 4 else f"M_CONVERT(int{lanes}, {test})"


def _compare(op: Op, src: list[str], kind: DType, lanes: int) -> str:
    if kind is dt.bool_ and op is Op.LT and lanes > 1:
        return f"(~{src[0]} & {src[1]})"
    test = f"({src[0]} {_INFIX[op]} {src[1]})"
    return test if lanes == 1 else _lane_test(test, kind, lanes)


def _conversion(node: Node, code: str, lanes: int) -> str:
    source, target = node.src[0].dtype, node.dtype
    if node.op is Op.CAST:
        return cast(code, source, target, lanes)
    if dt.float16 in (source, target) or dt.bool_ in (source, target):
        raise LoweringError(f"BITCAST: {source} to {target} has no OpenCL rendering")
    if source.itemsize < 4 and lanes == 1:
        code = f"({source.cl}){code}"  # C literals are ints
    return f"as_{ctype(target, lanes)}({code})"


def load(pointer: str, offset: str, dtype: DType, lanes: int, *, aligned: bool = False) -> str:
    """Return a load of consecutive elements; `aligned` means at a multiple of the vector's size."""
    whole = "WHOLE_" if aligned and lanes > 1 else ""
    if dtype is dt.float16:
        return f"M_LOAD_HALF_{whole}{lanes}({pointer} + ({offset}))"
    name = "M_LOAD_WHOLE" if whole else "M_LOAD"
    vector = f"{name}({dtype.cl}, {lanes}, {pointer} + ({offset}))"
    raw = f"{pointer}[{offset}]" if lanes == 1 else vector
    if dtype is not dt.bool_:
        return raw
    return f"({raw} != 0)" if lanes == 1 else f"M_CONVERT(int{lanes}, {raw} != (uchar{lanes})(0))"


def load_private(array: str, offset: str, dtype: DType, lanes: int) -> str:
    """Return a load from a private array, which holds scalar register types; bools are 0 or 1."""
    if lanes == 1:
        return f"{array}[{offset}]"
    code = f"M_PICK({register(dtype).cl}, {lanes}, {array} + ({offset}))"
    return f"-{code}" if dtype is dt.bool_ else code


def store_private(array: str, offset: str, code: str, dtype: DType, lanes: int) -> str:
    """Return the statement that stores into a private array."""
    if lanes == 1:
        return f"{array}[{offset}] = {code};"
    code = f"-{code}" if dtype is dt.bool_ else code
    return f"M_PUT({register(dtype).cl}, {lanes}, {code}, {array} + ({offset}));"


def store(
    pointer: str, offset: str, code: str, dtype: DType, lanes: int, *, aligned: bool = False
) -> str:
    """Return the statement that stores consecutive elements; `aligned` is as for `load`."""
    whole = "WHOLE_" if aligned and lanes > 1 else ""
    if dtype is dt.float16:
        return f"M_STORE_HALF_{whole}{lanes}({code}, {pointer} + ({offset}));"
    if dtype is dt.bool_:
        code = f"(uchar)({code} != 0)" if lanes == 1 else f"M_CONVERT(uchar{lanes}, -{code})"
    if lanes == 1:
        return f"{pointer}[{offset}] = {code};"
    name = "M_STORE_WHOLE" if whole else "M_STORE"
    return f"{name}({dtype.cl}, {lanes}, {code}, {pointer} + ({offset}));"


def combine(op: Op, accumulator: str, value: str, dtype: DType, lanes: int) -> str:
    """Return the next value of an accumulator."""
    if dtype is dt.bool_:
        return f"{accumulator} {_LOGIC[op]} {value}"
    if op in (Op.ADD, Op.MUL) and dtype.is_int:
        return _wrapped(_INFIX[op], accumulator, value, dtype, lanes)
    if op in (Op.ADD, Op.MUL):
        return f"{accumulator} {_INFIX[op]} {value}"
    return _extreme(op, accumulator, value, dtype, lanes, nan=dtype.is_float)


def _extreme(op: Op, a: str, b: str, kind: DType, lanes: int, *, nan: bool) -> str:
    """Return the larger (MAX) or smaller (MIN) of a and b; `nan` tells whether b can be NaN."""
    test = f"({a} < {b})" if op is Op.MAX else f"({b} < {a})"
    test = test if lanes == 1 else _lane_test(test, kind, lanes)
    code = choose(test, b, a, kind, lanes)
    if not nan:
        return code
    # A separate select, because the inner one is a single instruction on most devices.
    test = f"({b} != {b})" if lanes == 1 else _lane_test(f"({b} != {b})", kind, lanes)
    return choose(test, b, code, kind, lanes)


def _may_be_nan(node: Node) -> bool:
    """Whether a value can be NaN; known numbers and converted integers cannot."""
    if node.op is Op.CONST:
        return isinstance(node.arg, float) and math.isnan(node.arg)
    whole = node.op is Op.CAST and not node.src[0].dtype.is_float
    return node.dtype.is_float and not whole
