"""Translators of operators on the bits of integers. Definitions: ONNX operator documentation."""

from __future__ import annotations

from scheduler.errors import ModelError
from scheduler.ir.ops import Op
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.tensor.tensor import Tensor


def bit_shift(ctx: NodeContext) -> Value:
    """Translate BitShift.

    A distance below 0, or of the type's width and more, shifts everything out: -1 is left of a
    negative number that is shifted to the right, 0 of every other (the definition of opset 28; the
    ones before leave it open).
    """
    direction = ctx.text("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        raise ModelError(f"direction must be LEFT or RIGHT, found {direction!r}")
    x, distance = ctx.tensor(0), ctx.tensor(1)
    if x.dtype is not distance.dtype or not x.dtype.is_int:
        raise ModelError(f"expected integers of one type, found {x.dtype} and {distance.dtype}")
    width = 8 * x.dtype.itemsize
    known = ctx.value(1)
    inside = not isinstance(known, Tensor) and bool(((known >= 0) & (known < width)).all())
    if direction == "RIGHT" and not x.dtype.is_unsigned:
        # The last bit that stays is the sign, as often as the width.
        last = distance.operand(width - 1)
        return x >> (distance if inside else _outside(distance, width).where(last, distance))
    if inside:
        return x << distance if direction == "LEFT" else x >> distance
    out = _outside(distance, width)
    safe = out.where(0, distance)
    return out.where(0, x << safe if direction == "LEFT" else x >> safe)


def _outside(distance: Tensor, width: int) -> Tensor:
    above = distance >= width
    return above if distance.dtype.is_unsigned else above | (distance < 0)


def invert(x: Tensor) -> Tensor:
    """Return the complement of an integer's bits."""
    return x.unary(Op.NOT)
