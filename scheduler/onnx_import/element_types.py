"""Element types that no device computes in: bfloat16, 8-bit floats, 4- and 2-bit integers.

Inside the graph such a value is a float32 (or an int8, uint8) that holds exactly what the type can
hold. Memory outside holds its bits, one element in one or two bytes.

    input  uint16 bits  ->  decode  ->  float32 ... float32  ->  encode  ->  output  uint16 bits
    Cast to the type    ->  round to the nearest value that the type has

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

# --- Floats of few bits, as arithmetic on float32: rounding to one, and its bits --------------
# A format has sign, exponent and mantissa bits in this order; all its values are float32 values.
# Rounding is to nearest, halves to even, as ONNX's Cast asks for.

_MANTISSA = 23  # of float32
_BIAS = 127  # of its exponent


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A floating-point format of at most 16 bits."""

    exponent: int  # bits of it
    mantissa: int  # bits of it; with none, values are powers of two
    bias: int  # of the exponent
    # Bits of NaN without its sign where it is one code; None if there is no NaN. With infinities,
    # NaN is a largest exponent with any mantissa.
    nan_code: int | None = None
    has_infinity: bool = False  # the largest exponent is for infinities and NaN, as in IEEE 754
    has_negative_zero: bool = True  # else its code is NaN's
    has_sign: bool = True  # else there are no negative values

    @property
    def width(self) -> int:
        """Bits of a value without its sign."""
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
        """The smallest value with a full mantissa."""
        return float(2.0 ** (1 - self.bias))

    def round(self, x: Tensor, *, saturate: bool, mode: str) -> Tensor:
        """Return x (float32) rounded to the format, as float32.

        Args:
            x: any float32 values.
            saturate: values beyond the largest become it; else infinity, or NaN without infinities.
            mode: where there is no mantissa: "up", "down" or "nearest" (halves up).
        """
        if not self.has_sign:
            return self._power_of_two(x, saturate=saturate, mode=mode)
        dropped = _MANTISSA - self.mantissa
        bits = x.bitcast(dt.uint32)
        even = (bits >> dropped) & 1
        whole = ((bits + ((1 << dropped - 1) - 1) + even) >> dropped) << dropped
        near = whole.bitcast(dt.float32)
        if self.exponent < 8:
            step = self.smallest_normal / (1 << self.mantissa)
            small = (x * (1.0 / step)).round() * step
            near = (x.abs() < self.smallest_normal).where(small, near)
        return self._limited(x, near, saturate=saturate)

    def _limited(self, x: Tensor, near: Tensor, *, saturate: bool) -> Tensor:
        """Return rounded values with what is beyond the largest one, and NaN, put right."""
        top = self.largest
        if self.nan_code is None and not self.has_infinity:
            return x.ne(x).where(0.0, near.clip(-top, top))  # there is no NaN to give
        if saturate and self.exponent < 8:
            limited = near.clip(-top, top)
        elif self.has_infinity:
            limited = (near.abs() > top).where((x < 0).where(-float("inf"), float("inf")), near)
        else:
            limited = (near.abs() > top).where(float("nan"), near)
        if not self.has_negative_zero:
            limited = limited + 0.0
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
        # The smallest value, 2^-127, is a denormal float32: half a unit of the first exponent.
        power = exponent.eq(0).where(
            Tensor(1 << _MANTISSA - 1, dt.uint32), exponent.clip(0, limit) << _MANTISSA
        )
        value = power.bitcast(dt.float32)
        beyond = Tensor(self.largest if saturate else float("nan"), dt.float32)
        return (x.ne(x) | (x < 0)).where(float("nan"), over.where(beyond, value))

    def bits(self, x: Tensor) -> Tensor:
        """Return the bits (uint32) of values that the format can hold."""
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
    """An element type that is carried in a wider one."""

    code: int  # ONNX's TensorProto.DataType
    storage: DType  # type of the bits in memory outside of the graph
    carrier: DType  # type of the values in the graph
    format: FloatFormat | None = None  # of a float; the storage of integers is their carrier
    bits: int = 8  # of an integer

    @property
    def name(self) -> str:
        """ONNX's name of it, in lower case."""
        return str(TensorProto.DataType.Name(self.code)).lower()

    def decode(self, stored: Tensor) -> Tensor:
        """Return the values of stored bits."""
        if self.format is None:
            return stored
        if self is BFLOAT16:
            return (stored.cast(dt.uint32) << 16).bitcast(dt.float32)
        table = np.arange(256).astype(np.uint8).view(self._numpy()).astype(np.float32)
        return Tensor.weight(table).gather(stored.cast(dt.int32), 0)

    def encode(self, values: Tensor) -> Tensor:
        """Return the bits of values.

        Arithmetic on bfloat16 is done in the carrier: results between two values of the type become
        the nearest one. Others must be values of it.
        """
        if self.format is None:
            return values
        exact = self.round(values) if self is BFLOAT16 else values
        return self.format.bits(exact).cast(self.storage)

    def round(self, values: Tensor, *, saturate: bool = True, mode: str = "up") -> Tensor:
        """Return values of any uncarried type as the nearest ones of this type, in the carrier.

        `saturate` and `mode` are as for `FloatFormat.round`.
        """
        if self.format is not None:
            return self.format.round(values.cast(dt.float32), saturate=saturate, mode=mode)
        # Integers wrap to the low bits, as a conversion in numpy does.
        mask, low = (1 << self.bits) - 1, self._lowest
        return (((values.cast(dt.int32) - low) & mask) + low).cast(self.carrier)

    @property
    def _lowest(self) -> int:
        """The lowest value of an integer type."""
        return 0 if self.carrier.is_unsigned else -(1 << self.bits - 1)

    def saturated(self, whole: Tensor) -> Tensor:
        """Return whole numbers limited to the range of an integer type, in the carrier."""
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
    """Return the carried type of an ONNX element type; None for what devices compute in."""
    return CARRIED.get(code)


def graph_dtype(code: int) -> DType:
    """Return the type in which an ONNX element type is computed, or raise ModelError."""
    kind = CARRIED.get(code)
    if kind is not None:
        return kind.carrier
    try:
        return dt.from_numpy(helper.tensor_dtype_to_np_dtype(code))
    except (KeyError, ValueError, TypeError) as error:
        raise ModelError(f"element type {type_name(code)} is not supported") from error


def storage_dtype(code: int) -> DType:
    """Return the type of an ONNX element type outside of a program, or raise ModelError."""
    kind = CARRIED.get(code)
    return graph_dtype(code) if kind is None else kind.storage


def graph_array(values: Array) -> Array:
    """Return an array as it is computed with: of a carried type, in its carrier."""
    kind = _BY_NUMPY.get(values.dtype)
    return values if kind is None else np.asarray(values.astype(kind.carrier.np))


def weight_of(values: Array, kind: CarriedType) -> Tensor:
    """Return known values, in the carrier, as a weight with the storage of the carried type."""
    if kind.format is None or kind.storage is not dt.uint16:
        return Tensor.weight(np.asarray(values, order="C"))
    bits = (np.asarray(values, order="C").view(np.uint32) >> 16).astype(np.uint16)
    return kind.decode(Tensor.weight(bits))


def to_storage(array: Array, code: int) -> Array:
    """Return an array of an ONNX type, as numpy or ml_dtypes has it, as contiguous storage."""
    kind = carried(code)
    contiguous = np.asarray(array, order="C")
    if kind is None:
        return contiguous
    # An integer of few bits is stored as a whole one, a float as its code.
    if kind.format is None:
        return contiguous.astype(kind.storage.np)
    return contiguous.view(kind.storage.np)


def from_storage(array: Array, code: int) -> Array:
    """Return a copy of a program's array in the numpy or ml_dtypes type of `code`."""
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
