"""Defines the element types, in one table for numpy, ONNX import and OpenCL rendering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from scheduler.errors import ModelError


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type. There is one object per type, compared by identity."""

    name: str  # numpy's name, also used in artifacts
    itemsize: int  # bytes per stored element
    cl: str  # OpenCL C scalar type in memory (`bool` is one byte)
    rank: int  # promotion order: an operation on two types uses the one of higher rank

    @property
    def np(self) -> np.dtype[Any]:
        """The numpy dtype."""
        return np.dtype(self.name)

    @property
    def is_float(self) -> bool:
        """Whether this is a floating-point type."""
        return self.name.startswith("float")

    @property
    def is_int(self) -> bool:
        """Whether this is an integer type; bool is not."""
        return not self.is_float and self.name != "bool"

    @property
    def is_unsigned(self) -> bool:
        """Whether this is an unsigned integer type."""
        return self.name.startswith("uint")

    @property
    def arithmetic(self) -> str:
        """OpenCL C scalar type for sums and products; integers use unsigned types, to wrap around.

        In C, overflow of a signed integer is undefined, and narrow integers are promoted to int.
        """
        if not self.is_int:
            return self.cl
        return "ulong" if self.itemsize == 8 else "uint"

    def __repr__(self) -> str:
        return self.name


bool_ = DType("bool", 1, "uchar", 0)
uint8 = DType("uint8", 1, "uchar", 1)
int8 = DType("int8", 1, "char", 2)
uint16 = DType("uint16", 2, "ushort", 3)
int16 = DType("int16", 2, "short", 4)
uint32 = DType("uint32", 4, "uint", 5)
int32 = DType("int32", 4, "int", 6)
uint64 = DType("uint64", 8, "ulong", 7)
int64 = DType("int64", 8, "long", 8)
float16 = DType("float16", 2, "half", 9)
float32 = DType("float32", 4, "float", 10)
float64 = DType("float64", 8, "double", 11)

ALL = (bool_, uint8, int8, uint16, int16, uint32, int32, uint64, int64, float16, float32, float64)
_BY_NAME = {d.name: d for d in ALL}


def from_numpy(dtype: Any) -> DType:
    """Return the DType of a numpy dtype; raise ModelError for strings and complex numbers."""
    name = np.dtype(dtype).name
    if name not in _BY_NAME:
        raise ModelError(
            f"element type {name} is not supported; expected one of {sorted(_BY_NAME)}"
        )
    return _BY_NAME[name]


def promote(a: DType, b: DType) -> DType:
    """Return the type for combining two operands: the one of higher rank."""
    return a if a.rank >= b.rank else b


def min_value(dtype: DType) -> float | int:
    """Return the smallest value of a type (minus infinity for floats): the identity of MAX."""
    if dtype.is_float:
        return -np.inf
    return 0 if dtype.name == "bool" else int(np.iinfo(dtype.np).min)


def max_value(dtype: DType) -> float | int:
    """Return the largest value of a type (infinity for floats): the identity of MIN."""
    if dtype.is_float:
        return np.inf
    return 1 if dtype.name == "bool" else int(np.iinfo(dtype.np).max)


def holds(dtype: DType, value: int) -> bool:
    """Return whether an integer is a value of an integer type or bool."""
    return min_value(dtype) <= value <= max_value(dtype)


def as_dtype(dtype: DType | Any) -> DType:
    """Return the DType of a DType or of anything that numpy accepts as a dtype."""
    return dtype if isinstance(dtype, DType) else from_numpy(dtype)
