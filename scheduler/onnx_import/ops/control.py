"""Translators of If, Loop, Scan, sequences and optionals.

All of them are resolved at import, so the compiled graph has no control flow. "Constant" means
known at import, "run-time" means computed from inputs.

If(constant)                     ->   the taken branch
If(run-time condition)           ->   both branches, then where(condition, a, b)
Loop(constant count)             ->   the body, once per iteration
Loop(count, run-time condition)  ->   the same; values no longer change once it is false
Scan                             ->   the body, once per slice
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from scheduler.errors import DynamicInputError, ModelError
from scheduler.onnx_import.context import (
    AnyValue,
    Array,
    NodeContext,
    Value,
    ValueList,
    as_tensor,
    normal_axis,
    run_time_inputs,
)
from scheduler.tensor.tensor import Tensor

# The maximum number of iterations of a loop; each one adds a copy of the body to the graph.
MAX_ITERATIONS = 4096


def if_(ctx: NodeContext) -> list[AnyValue]:
    """Translate If; if the condition depends on run-time data, both branches are computed."""
    condition = ctx.value(0)
    branches: tuple[onnx.GraphProto, onnx.GraphProto] = (
        ctx.attribute("then_branch"),
        ctx.attribute("else_branch"),
    )
    if not isinstance(condition, Tensor):
        taken = bool(condition.reshape(-1)[0])
        return ctx.run_graph(branches[0] if taken else branches[1], (), "branch")
    test = condition.reshape(()).bool()
    try:
        yes, no = (ctx.run_graph(b, (), "branch") for b in branches)
    except ModelError as error:  # often a branch that the given inputs never take
        raise DynamicInputError(
            f"a branch cannot be translated ({error}); if it is never taken, fix the inputs "
            "of its condition at compile time",
            ctx.node.input[0],
            run_time_inputs(test),
        ) from error
    return [
        _choose(test, a, b, f"result {i}") for i, (a, b) in enumerate(zip(yes, no, strict=True))
    ]


def loop(ctx: NodeContext) -> list[AnyValue]:
    """Translate Loop: the carried values, then the stacked outputs of all iterations."""
    body: onnx.GraphProto = ctx.attribute("body")
    count = int(ctx.const(0, "trip count").reshape(-1)[0]) if ctx.has(0) else None
    alive: Value = ctx.value(1) if ctx.has(1) else np.array(1, np.bool_)
    carried = [ctx.any_value(i) for i in range(2, ctx.count)]
    scanned: list[list[Tensor]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    iteration = 0
    while (count is None or iteration < count) and not _is_false(alive):
        if iteration >= MAX_ITERATIONS:
            raise ModelError(
                f"more than {MAX_ITERATIONS} iterations; expected a loop that can be unrolled"
            )
        if isinstance(alive, Tensor) and (count is None or scanned):
            raise DynamicInputError(
                "its condition depends on run-time data, so the number of iterations does: "
                "expected a known trip count, and no stacked outputs with such a condition",
                "condition",
                run_time_inputs(alive),
            )
        step = np.array(iteration, np.int64)
        condition = alive if isinstance(alive, Tensor) else np.array(1, np.bool_)
        results = ctx.run_graph(body, (step, condition, *carried), f"iteration {iteration}")
        after, made = results[1 : 1 + len(carried)], results[1 + len(carried) :]
        for stack, value in zip(scanned, made, strict=True):
            stack.append(_tensor(ctx, value))
        if isinstance(alive, Tensor):
            test = alive.reshape(()).bool()
            after = [
                _choose(test, new, old, f"carried value {i}")
                for i, (new, old) in enumerate(zip(after, carried, strict=True))
            ]
        carried = after
        alive = _both(alive, results[0])
        iteration += 1
    declared = body.output[1 + len(carried) :]
    return [*carried, *(_stack(s, o) for s, o in zip(scanned, declared, strict=True))]


def scan(ctx: NodeContext) -> list[AnyValue]:
    """Translate Scan (opset 9 on): the carried values, then the stacked outputs of all slices."""
    if ctx.opset < 9:
        raise ModelError("the batched Scan of opset 8 is not supported; export with opset 9 on")
    body: onnx.GraphProto = ctx.attribute("body")
    total = int(ctx.attribute("num_scan_inputs"))
    states = ctx.count - total
    carried = [ctx.any_value(i) for i in range(states)]
    inputs = [ctx.tensor(i) for i in range(states, ctx.count)]
    axes = ctx.ints_attribute("scan_input_axes") or [0] * total
    backward = ctx.ints_attribute("scan_input_directions") or [0] * total
    axes = [normal_axis(a, x.ndim) for a, x in zip(axes, inputs, strict=True)]
    lengths = {x.shape[a] for a, x in zip(axes, inputs, strict=True)}
    if len(lengths) != 1:
        raise ModelError(f"scanned inputs have lengths {sorted(lengths)}; expected one length")
    (length,) = lengths
    if length > MAX_ITERATIONS:
        raise ModelError(f"{length} slices; expected at most {MAX_ITERATIONS}")
    results: list[list[Tensor]] = [[] for _ in range(len(body.output) - states)]
    for i in range(length):
        slices = [
            _slice(x, axis, length - 1 - i if back else i)
            for x, axis, back in zip(inputs, axes, backward, strict=True)
        ]
        outputs = ctx.run_graph(body, (*carried, *slices), f"slice {i}")
        carried = outputs[:states]
        for stack, value in zip(results, outputs[states:], strict=True):
            stack.append(_tensor(ctx, value))
    out_axes = ctx.ints_attribute("scan_output_axes") or [0] * len(results)
    out_back = ctx.ints_attribute("scan_output_directions") or [0] * len(results)
    declared = body.output[states:]
    stacked = [
        _stack(stack[::-1] if back else stack, output, axis)
        for stack, output, axis, back in zip(results, declared, out_axes, out_back, strict=True)
    ]
    return [*carried, *stacked]


def _slice(x: Tensor, axis: int, at: int) -> Tensor:
    return x[(*(slice(None),) * axis, at)]


def _is_false(alive: Value) -> bool:
    return not isinstance(alive, Tensor) and not bool(alive.reshape(-1)[0])


def _both(alive: Value, condition: AnyValue) -> Value:
    """Return the condition of the next iteration; once false, it stays false."""
    if isinstance(condition, ValueList):
        raise ModelError("the condition is a sequence; expected a bool")
    if not isinstance(alive, Tensor) or _is_false(condition):
        return condition
    return as_tensor(condition).reshape(()).bool() & alive.reshape(()).bool()


def _choose(test: Tensor, yes: AnyValue, no: AnyValue, what: str) -> AnyValue:
    if isinstance(yes, ValueList) or isinstance(no, ValueList):
        raise DynamicInputError(
            f"{what} is a sequence that depends on a condition from run-time data",
            "condition",
            run_time_inputs(test),
        )
    a, b = as_tensor(yes), as_tensor(no)
    if a.shape != b.shape or a.dtype is not b.dtype:
        raise DynamicInputError(
            f"{what} is {a.dtype}{list(a.shape)} or {b.dtype}{list(b.shape)}, by a condition from "
            "run-time data; expected one shape and type",
            "condition",
            run_time_inputs(test),
        )
    return test.where(a, b)


def _tensor(ctx: NodeContext, value: AnyValue) -> Tensor:
    if isinstance(value, ValueList):
        raise ModelError("a stacked output is a sequence; expected a tensor")
    return value if isinstance(value, Tensor) else ctx.weights.of(value, 0)


def _stack(values: Sequence[Tensor], output: onnx.ValueInfoProto, axis: int = 0) -> AnyValue:
    """Return values stacked along a new axis; without values, an empty array as declared."""
    if values:
        axis = normal_axis(axis, values[0].ndim + 1)
        return Tensor.cat([v.unsqueeze(axis) for v in values], axis=axis)
    kind = output.type.tensor_type
    sizes = [d.dim_value if d.HasField("dim_value") else 0 for d in kind.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type) if kind.elem_type else np.float32
    nothing: Array = np.zeros((0, *sizes), dtype)
    return nothing


# --- Sequences and optionals, which exist only at import --------------------------------------


def construct(ctx: NodeContext) -> list[AnyValue]:
    """Translate SequenceConstruct: the sequence of its inputs."""
    return [ValueList(tuple(ctx.any_value(i) for i in range(ctx.count)))]


def empty(_: NodeContext) -> list[AnyValue]:
    """Translate SequenceEmpty."""
    return [ValueList(())]


def insert(ctx: NodeContext) -> list[AnyValue]:
    """Translate SequenceInsert before a position; a negative one counts from the end."""
    values = list(_items(ctx, 0))
    at = int(ctx.const(2, "position").reshape(())) if ctx.has(2) else len(values)
    if not -len(values) <= at <= len(values):
        raise ModelError(f"position {at} is out of range for a sequence of {len(values)}")
    values.insert(at, ctx.any_value(1))
    return [ValueList(tuple(values))]


def erase(ctx: NodeContext) -> list[AnyValue]:
    """Translate SequenceErase; by default it erases the last element."""
    values = list(_items(ctx, 0))
    del values[_position(ctx, 1, len(values)) if ctx.has(1) else -1]
    return [ValueList(tuple(values))]


def at(ctx: NodeContext) -> list[AnyValue]:
    """Translate SequenceAt."""
    values = _items(ctx, 0)
    return [values[_position(ctx, 1, len(values))]]


def length(ctx: NodeContext) -> list[AnyValue]:
    """Translate SequenceLength, which is always a constant."""
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
    """Translate ConcatFromSequence: tensors joined along an axis, or stacked along a new one."""
    parts = [_sequence_tensor(ctx, value) for value in _items(ctx, 0)]
    if not parts:
        raise ModelError("the sequence is empty; expected one tensor or more")
    new_axis = bool(ctx.integer("new_axis", 0))
    axis = normal_axis(int(ctx.attribute("axis")), parts[0].ndim + new_axis)
    if new_axis:
        parts = [part.unsqueeze(axis) for part in parts]
    return [Tensor.cat(parts, axis=axis)]


def optional(ctx: NodeContext) -> list[AnyValue]:
    """Translate Optional: an optional with the input's value, or without a value."""
    return [ValueList((ctx.any_value(0),) if ctx.has(0) else ())]


def optional_get(ctx: NodeContext) -> list[AnyValue]:
    """Translate OptionalGetElement; a tensor is returned unchanged."""
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


def _sequence_tensor(ctx: NodeContext, value: AnyValue) -> Tensor:
    if isinstance(value, ValueList):
        raise ModelError("a sequence of sequences; expected tensors")
    return value if isinstance(value, Tensor) else ctx.weights.of(value, 0)
