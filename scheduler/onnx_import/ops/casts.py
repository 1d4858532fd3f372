"""Translators of Cast, CastLike and BitCast, element types that no device computes in included."""

from __future__ import annotations

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.element_types import carried, graph_dtype, type_name
from scheduler.tensor.tensor import Tensor


def cast(ctx: NodeContext) -> Value:
    """Translate Cast and CastLike; floats to integers truncate, to bool is "not 0".

    To a type of few bits values are rounded; `saturate` and `round_mode` as ONNX's Cast has them.
    """
    like = ctx.node.op_type == "CastLike"
    return cast_to(ctx, ctx.tensor(0), ctx.element_type(1) if like else ctx.integer("to", 0))


def cast_to(ctx: NodeContext, x: Tensor, target: int) -> Tensor:
    """Return x as an ONNX element type, with the node's attributes for what does not fit."""
    kind = carried(target)
    if kind is not None:
        saturate = bool(ctx.integer("saturate", 1))
        return kind.round(x, saturate=saturate, mode=ctx.text("round_mode", "up"))
    try:
        dtype = graph_dtype(target)
    except ModelError as error:
        raise ModelError(f"cannot cast to element type {type_name(target)}") from error
    return x.bool() if dtype is dt.bool_ else x.cast(dtype)


def bit_cast(ctx: NodeContext) -> Value:
    """Translate BitCast: the same bits as another type of the same size."""
    target = ctx.integer("to", 0)
    source = carried(ctx.element_type(0))
    x = ctx.tensor(0)
    stored = x if source is None else source.encode(x)
    kind = carried(target)
    wanted = graph_dtype(target) if kind is None else kind.storage
    if wanted.itemsize != stored.dtype.itemsize:
        raise ModelError(f"{stored.dtype} and {type_name(target)} differ in size")
    if dt.bool_ in (wanted, stored.dtype):
        # A bool is stored as 0 or 1, and read as "not 0".
        bits = stored.bool() if wanted is dt.bool_ else stored.cast(wanted)
    else:
        bits = stored.bitcast(wanted)
    return bits if kind is None else kind.decode(bits)
