"""One node with its inputs: how the operator cases of this package are written."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class _Draws:
    """Random values that start anew after each case, so that none depends on those before it."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.now = np.random.default_rng(7)


_draws = _Draws()


def draw() -> np.random.Generator:
    return _draws.now


@dataclass(frozen=True)
class Const:
    """An input that is an initializer in both runs: a shape, axes, a scale."""

    array: Array | np.generic


@dataclass(frozen=True)
class Case:
    """One node; `domain` is that of its operator, `reference` who says what is right.

    onnxruntime ("ort") where it has the operator; onnx's own evaluator ("onnx") where it does not.
    """

    op: str
    inputs: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1
    reference: str = "ort"
    domain: str = ""

    def __post_init__(self) -> None:
        _draws.restart()

    @property
    def label(self) -> str:
        shapes = "_".join("x".join(map(str, np.shape(array_of(i)))) for i in self.inputs)
        names = "_".join(f"{k}={v}" for k, v in self.attributes.items() if np.size(v) < 9)
        return f"{self.op}-{self.opset}-{shapes}-{names}".replace(" ", "")[:90]


def array_of(value: Any) -> Any:
    """Return the array of an input, whether it is fixed or not."""
    return value.array if isinstance(value, Const) else value


def f(*shape: int) -> Array:
    return draw().standard_normal(shape).astype(np.float32)


def pos(*shape: int) -> Array:
    return (draw().random(shape) + 0.1).astype(np.float32)


def ints(low: int, high: int, *shape: int, dtype: Any = np.int64) -> Array:
    return draw().integers(low, high, shape).astype(dtype)


def i32(*shape: int) -> Array:
    return ints(-9, 10, *shape, dtype=np.int32)


def u8(*shape: int) -> Array:
    return ints(0, 256, *shape, dtype=np.uint8)


def flags(*shape: int) -> Array:
    return draw().random(shape) < 0.5


def k(*values: float, dtype: Any = np.int64) -> Const:
    """Return a 1-D constant."""
    return Const(np.array(values, dtype))


def one(value: Any, dtype: Any = np.int64) -> Const:
    """Return a constant: a scalar, or of the shape of nested lists."""
    return Const(np.array(value, dtype))


def w(*shape: int) -> Const:
    return Const(f(*shape))


def case(
    op: str,
    *inputs: Any,
    opset: int = 17,
    outputs: int = 1,
    reference: str = "ort",
    domain: str = "",
    **attributes: Any,
) -> Case:
    return Case(op, inputs, attributes, opset, outputs, reference, domain)


def own(op: str, *inputs: Any, **given: Any) -> Case:
    """Return a case that onnx's own evaluator judges."""
    return case(op, *inputs, reference="onnx", **given)
