"""Translators of sequences and optionals: lists while importing, never at run time."""

from __future__ import annotations

import numpy as np

from scheduler.errors import ModelError
from scheduler.onnx_import.context import AnyValue, NodeContext, ValueList, normal_axis
from scheduler.tensor.tensor import Tensor


def construct(ctx: NodeContext) -> list[AnyValue]:
    """Translate SequenceConstruct: its inputs as a list."""
    return [ValueList(tuple(ctx.any_value(i) for i in range(ctx.count)))]


def empty(_: NodeContext) -> list[AnyValue]:
    """Translate SequenceEmpty."""
    return [ValueList(())]


def insert(ctx: NodeContext) -> list[AnyValue]:
    """Translate SequenceInsert: before the position, which counts from the end where negative."""
    values = list(_items(ctx, 0))
    at = int(ctx.const(2, "position").reshape(())) if ctx.has(2) else len(values)
    if not -len(values) <= at <= len(values):
        raise ModelError(f"position {at} is out of range for a sequence of {len(values)}")
    values.insert(at, ctx.any_value(1))
    return [ValueList(tuple(values))]


def erase(ctx: NodeContext) -> list[AnyValue]:
    """Translate SequenceErase: the last one by default."""
    values = list(_items(ctx, 0))
    del values[_position(ctx, 1, len(values)) if ctx.has(1) else -1]
    return [ValueList(tuple(values))]


def at(ctx: NodeContext) -> list[AnyValue]:
    """Translate SequenceAt."""
    values = _items(ctx, 0)
    return [values[_position(ctx, 1, len(values))]]


def length(ctx: NodeContext) -> list[AnyValue]:
    """Translate SequenceLength: known, whatever is in the sequence."""
    return [np.array(len(_items(ctx, 0)), np.int64)]


def split_to_sequence(ctx: NodeContext) -> list[AnyValue]:
    """Translate SplitToSequence: parts of given sizes, of one size, or of size 1."""
    x = ctx.tensor(0)
    axis = normal_axis(ctx.integer("axis", 0), x.ndim)
    size = x.shape[axis]
    given = ctx.const(1, "split") if ctx.has(1) else None
    if given is not None and given.ndim:
        sizes = [int(v) for v in given]
    else:
        step = 1 if given is None else int(given)
        if step < 1:
            raise ModelError(f"split {step}: expected a size of 1 or more")
        sizes = [min(step, size - start) for start in range(0, size, step)]
    parts = x.split(sizes, axis)
    if given is None and not ctx.integer("keepdims", 1):
        parts = [part.squeeze(axis) for part in parts]
    return [ValueList(tuple(parts))]


def concat_from_sequence(ctx: NodeContext) -> list[AnyValue]:
    """Translate ConcatFromSequence: joined along an axis, or along a new one."""
    parts = [_tensor(ctx, value) for value in _items(ctx, 0)]
    if not parts:
        raise ModelError("the sequence is empty; expected one tensor or more")
    new_axis = bool(ctx.integer("new_axis", 0))
    axis = normal_axis(int(ctx.attribute("axis")), parts[0].ndim + new_axis)
    if new_axis:
        parts = [part.unsqueeze(axis) for part in parts]
    return [Tensor.cat(parts, axis=axis)]


def optional(ctx: NodeContext) -> list[AnyValue]:
    """Translate Optional: with its input, or without one."""
    return [ValueList((ctx.any_value(0),) if ctx.has(0) else ())]


def optional_get(ctx: NodeContext) -> list[AnyValue]:
    """Translate OptionalGetElement; what is no optional is itself."""
    value = ctx.any_value(0)
    if not isinstance(value, ValueList):
        return [value]
    if not value.values:
        raise ModelError("the optional has no value")
    return [value.values[0]]


def optional_has(ctx: NodeContext) -> list[AnyValue]:
    """Translate OptionalHasElement."""
    value = ctx.any_value(0) if ctx.has(0) else ValueList(())
    return [np.array(not isinstance(value, ValueList) or bool(value.values))]


def _items(ctx: NodeContext, index: int) -> tuple[AnyValue, ...]:
    value = ctx.any_value(index)
    if not isinstance(value, ValueList):
        raise ModelError(f"input {index} is a tensor; expected a sequence")
    return value.values


def _position(ctx: NodeContext, index: int, count: int) -> int:
    position = int(ctx.const(index, "position").reshape(()))
    if not -count <= position < count:
        raise ModelError(f"position {position} is out of range for a sequence of {count}")
    return position % count


def _tensor(ctx: NodeContext, value: AnyValue) -> Tensor:
    if isinstance(value, ValueList):
        raise ModelError("a sequence of sequences; expected tensors")
    return value if isinstance(value, Tensor) else ctx.weights.of(value, 0)
