"""Carried types: element types that no device computes in, each carried in a wider type.

They are bfloat16, 8-bit and 4-bit floats, and 4-bit and 2-bit integers. Inside the graph, such a
value is a float32 (or an int8 or uint8) that the carried type represents exactly. Inputs and
outputs store its bits, one element in one or two bytes. Weights store bits only for bfloat16;
other weights are stored in the wider type.

    input  uint16 bits  ->  decode  ->  float32 ... float32  ->  encode  ->  output  uint16 bits
    Cast to the type    ->  round to the nearest value of the type

Formats: ONNX's pages "Float stored in 8 bits", "4 bit integer types", "Float stored in 4 bits".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.dtype import DType
from scheduler.tensor.tensor import Tensor

# --- Small float formats: rounding and encoding with float32 arithmetic -----------------------
# A format has sign, exponent and mantissa bits in this order; float32 represents all its values.
# Rounding is to nearest, ties to even, as ONNX's Cast requires.

_MANTISSA = 23  # mantissa bits of float32
_BIAS = 127  # exponent bias of float32


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A floating-point format of at most 16 bits."""

    # Number of exponent bits. Only bfloat16 and the unsigned format have 8, as float32 does. With
    # fewer, denormals of the format are normal float32 numbers and need a calculation of their own.
    exponent: int
    mantissa: int  # number of mantissa bits; with 0, all values are powers of two
    bias: int  # exponent bias
    # The only NaN bit pattern, apart from the sign; 0x80 in FNUZ formats, where it replaces -0.
    # None if the format has no NaN, or if it has infinities: then NaN is the largest exponent with
    # a nonzero mantissa.
    nan_code: int | None = None
    has_infinity: bool = False  # the largest exponent is for infinities and NaN, as in IEEE 754
    has_negative_zero: bool = True  # if false, the code of -0 is NaN
    has_sign: bool = True  # if false, there are no negative values

    @property
    def width(self) -> int:
        """Number of bits without the sign bit."""
        return self.exponent + self.mantissa

    @property
    def largest(self) -> float:
        """The largest finite value."""
        top = (1 << self.width) - 1
        if self.has_infinity:
            top = ((1 << self.exponent) - 1 << self.mantissa) - 1
        elif self.nan_code is not None and self.nan_code == top:
            top -= 1
        mantissa = (top & ((1 << self.mantissa) - 1)) / (1 << self.mantissa)
        return float((1.0 + mantissa) * 2.0 ** ((top >> self.mantissa) - self.bias))

    @property
    def smallest_normal(self) -> float:
        """The smallest positive value that is not denormal."""
        return float(2.0 ** (1 - self.bias))

    def round(self, x: Tensor, *, saturate: bool, mode: str) -> Tensor:
        """Return x (float32) rounded to the format, as float32.

        Args:
            x: float32 values.
            saturate: whether values beyond the largest finite value become that value. If not,
                they become infinity, or NaN in a format without infinities. bfloat16 never
                saturates, and a format with neither always does.
            mode: rounding of a format without mantissa: "up", "down" or "nearest" (ties up).
        """
        if not self.has_sign:
            return self._power_of_two(x, saturate=saturate, mode=mode)
        dropped = _MANTISSA - self.mantissa
        bits = x.bitcast(dt.uint32)
        even = (bits >> dropped) & 1
        whole = ((bits + ((1 << dropped - 1) - 1) + even) >> dropped) << dropped
        near = whole.bitcast(dt.float32)
        if self.exponent < 8:  # below the smallest normal, the spacing is constant
            step = self.smallest_normal / (1 << self.mantissa)
            small = (x * (1.0 / step)).round() * step
            near = (x.abs() < self.smallest_normal).where(small, near)
        return self._limited(x, near, saturate=saturate)

    def _limited(self, x: Tensor, near: Tensor, *, saturate: bool) -> Tensor:
        """Return the rounded values `near`, with overflows and NaN of `x` replaced."""
        top = self.largest
        if self.nan_code is None and not self.has_infinity:
            return x.ne(x).where(0.0, near.clip(-top, top))  # NaN becomes 0: the format has none
        if saturate and self.exponent < 8:  # not bfloat16
            limited = near.clip(-top, top)
        elif self.has_infinity:
            limited = (near.abs() > top).where((x < 0).where(-float("inf"), float("inf")), near)
        else:
            limited = (near.abs() > top).where(float("nan"), near)
        if not self.has_negative_zero:
            limited = limited + 0.0  # turns -0.0 into 0.0
        return x.ne(x).where(x, limited)

    def _power_of_two(self, x: Tensor, *, saturate: bool, mode: str) -> Tensor:
        bits = x.bitcast(dt.uint32)
        exponent, rest = (bits >> _MANTISSA) & 0xFF, bits & ((1 << _MANTISSA) - 1)
        half = 1 << _MANTISSA - 1
        more = {"up": rest.ne(0), "nearest": rest >= half}.get(mode)
        if more is not None:
            exponent = exponent + more.cast(dt.uint32)
        limit = 2 * self.bias
        over = exponent > limit
        # The smallest value, 2^-127, is a denormal float32 with only the top mantissa bit set.
        power = exponent.eq(0).where(
            Tensor(1 << _MANTISSA - 1, dt.uint32), exponent.clip(0, limit) << _MANTISSA
        )
        value = power.bitcast(dt.float32)
        beyond = Tensor(self.largest if saturate else float("nan"), dt.float32)
        return (x.ne(x) | (x < 0)).where(float("nan"), over.where(beyond, value))

    def bits(self, x: Tensor) -> Tensor:
        """Return the bits (uint32) of float32 values that the format represents exactly."""
        raw = x.bitcast(dt.uint32)
        magnitude = raw & 0x7FFFFFFF
        if not self.has_sign:
            return x.ne(x).where(Tensor(self.nan_code or 0, dt.uint32), magnitude >> _MANTISSA)
        code = (magnitude >> (_MANTISSA - self.mantissa)) - (
            (_BIAS - self.bias) << self.mantissa & 0xFFFFFFFF
        )
        if self.exponent < 8:
            step = self.smallest_normal / (1 << self.mantissa)
            tiny = (x.abs() * (1.0 / step)).cast(dt.uint32)
            code = (x.abs() < self.smallest_normal).where(tiny, code)
        sign = (raw >> 31) << self.width
        if not self.has_negative_zero:
            sign = x.eq(0).where(Tensor(0, dt.uint32), sign)
        if self.has_infinity:
            top = ((1 << self.exponent) - 1) << self.mantissa
            infinite = magnitude.eq(0x7F800000)
            code = infinite.where(Tensor(top, dt.uint32), code)
            nan = Tensor(top | (1 << max(self.mantissa - 1, 0)), dt.uint32)
            return x.ne(x).where(nan | sign, code | sign)
        if self.nan_code is None:
            return code | sign
        nan = Tensor(self.nan_code, dt.uint32)
        return x.ne(x).where(nan | sign if self.has_negative_zero else nan, code | sign)


Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class CarriedType:
    """An element type whose values are carried in a wider type."""

    code: int  # ONNX's TensorProto.DataType
    storage: DType  # type of the stored bits in inputs and outputs; of bfloat16 also in weights
    carrier: DType  # type of the values in the graph; for integers the same as `storage`
    format: FloatFormat | None = None  # float format; None for an integer
    bits: int = 8  # width of an integer; unused for a float

    @property
    def name(self) -> str:
        """ONNX's name of the type, in lower case."""
        return str(TensorProto.DataType.Name(self.code)).lower()

    def decode(self, stored: Tensor) -> Tensor:
        """Return the values of stored bits."""
        if self.format is None:
            return stored
        if self is BFLOAT16:
            return (stored.cast(dt.uint32) << 16).bitcast(dt.float32)
        # The values of all 256 bytes.
        table = np.arange(256).astype(np.uint8).view(self._numpy()).astype(np.float32)
        return Tensor.weight(table).gather(stored.cast(dt.int32), 0)

    def encode(self, values: Tensor) -> Tensor:
        """Return the stored bits of values in the carrier.

        bfloat16 arithmetic is done in float32, so bfloat16 values are rounded first. Values of the
        other types must be exact.
        """
        if self.format is None:
            return values
        exact = self.round(values) if self is BFLOAT16 else values
        return self.format.bits(exact).cast(self.storage)

    def round(self, values: Tensor, *, saturate: bool = True, mode: str = "up") -> Tensor:
        """Return values rounded to this type, in the carrier.

        `values` are of any type that is not carried. `saturate` and `mode` are as for
        `FloatFormat.round`; integers ignore both and wrap.
        """
        if self.format is not None:
            return self.format.round(values.cast(dt.float32), saturate=saturate, mode=mode)
        # Integers wrap to the low bits, like numpy's astype.
        mask, low = (1 << self.bits) - 1, self._lowest
        return (((values.cast(dt.int32) - low) & mask) + low).cast(self.carrier)

    @property
    def _lowest(self) -> int:
        """The lowest value of this integer type."""
        return 0 if self.carrier.is_unsigned else -(1 << self.bits - 1)

    def saturated(self, whole: Tensor) -> Tensor:
        """Return whole numbers clipped to the range of this integer type, in the carrier."""
        low = self._lowest
        return whole.clip(low, low + (1 << self.bits) - 1).cast(self.carrier)

    def _numpy(self) -> np.dtype[Any]:
        return np.dtype(helper.tensor_dtype_to_np_dtype(self.code))


BFLOAT16 = CarriedType(
    TensorProto.BFLOAT16, dt.uint16, dt.float32, FloatFormat(8, 7, 127, has_infinity=True)
)
_ALL = (
    BFLOAT16,
    CarriedType(
        TensorProto.FLOAT8E4M3FN, dt.uint8, dt.float32, FloatFormat(4, 3, 7, nan_code=0x7F)
    ),
    CarriedType(
        TensorProto.FLOAT8E4M3FNUZ,
        dt.uint8,
        dt.float32,
        FloatFormat(4, 3, 8, nan_code=0x80, has_negative_zero=False),
    ),
    CarriedType(
        TensorProto.FLOAT8E5M2, dt.uint8, dt.float32, FloatFormat(5, 2, 15, has_infinity=True)
    ),
    CarriedType(
        TensorProto.FLOAT8E5M2FNUZ,
        dt.uint8,
        dt.float32,
        FloatFormat(5, 2, 16, nan_code=0x80, has_negative_zero=False),
    ),
    CarriedType(
        TensorProto.FLOAT8E8M0,
        dt.uint8,
        dt.float32,
        FloatFormat(8, 0, 127, nan_code=0xFF, has_sign=False),
    ),
    CarriedType(TensorProto.FLOAT4E2M1, dt.uint8, dt.float32, FloatFormat(2, 1, 1, nan_code=None)),
    CarriedType(TensorProto.INT4, dt.int8, dt.int8, bits=4),
    CarriedType(TensorProto.UINT4, dt.uint8, dt.uint8, bits=4),
    CarriedType(TensorProto.INT2, dt.int8, dt.int8, bits=2),
    CarriedType(TensorProto.UINT2, dt.uint8, dt.uint8, bits=2),
)
CARRIED = {kind.code: kind for kind in _ALL}
_BY_NUMPY = {np.dtype(helper.tensor_dtype_to_np_dtype(kind.code)): kind for kind in _ALL}


def carried(code: int) -> CarriedType | None:
    """Return the carried type of an ONNX element type, or None for a type that devices support."""
    return CARRIED.get(code)


def graph_dtype(code: int) -> DType:
    """Return the type that the graph uses for an ONNX element type, or raise ModelError."""
    kind = CARRIED.get(code)
    if kind is not None:
        return kind.carrier
    try:
        return dt.from_numpy(helper.tensor_dtype_to_np_dtype(code))
    except (KeyError, ValueError, TypeError) as error:
        raise ModelError(f"element type {type_name(code)} is not supported") from error


def storage_dtype(code: int) -> DType:
    """Return the type that inputs and outputs use for an ONNX element type, or raise ModelError."""
    kind = CARRIED.get(code)
    return graph_dtype(code) if kind is None else kind.storage


def graph_array(values: Array) -> Array:
    """Return an array in the type used in the graph: the carrier, for a carried type."""
    kind = _BY_NUMPY.get(values.dtype)
    return values if kind is None else np.asarray(values.astype(kind.carrier.np))


def weight_of(values: Array, kind: CarriedType) -> Tensor:
    """Return a weight for constant values in the carrier; only bfloat16 is stored as its bits."""
    if kind.format is None or kind.storage is not dt.uint16:
        return Tensor.weight(np.asarray(values, order="C"))
    bits = (np.asarray(values, order="C").view(np.uint32) >> 16).astype(np.uint16)
    return kind.decode(Tensor.weight(bits))


def to_storage(array: Array, code: int) -> Array:
    """Return an array of ONNX type `code` (numpy or ml_dtypes) as contiguous stored values."""
    kind = carried(code)
    contiguous = np.asarray(array, order="C")
    if kind is None:
        return contiguous
    # A small integer is stored as int8 or uint8, a float as its bits.
    if kind.format is None:
        return contiguous.astype(kind.storage.np)
    return contiguous.view(kind.storage.np)


def from_storage(array: Array, code: int) -> Array:
    """Return a copy of a stored array in the numpy or ml_dtypes type of `code`."""
    kind = carried(code)
    if kind is None:
        return array.copy()
    wanted = np.dtype(helper.tensor_dtype_to_np_dtype(code))
    if kind.format is None:
        return array.astype(wanted)
    return array.copy().view(wanted)


def type_name(code: int) -> str:
    """Return the name of an ONNX element type, in lower case."""
    try:
        return str(TensorProto.DataType.Name(code)).lower()
    except ValueError:
        return str(code)
