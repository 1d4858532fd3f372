"""Shape inference: each operation gives a shape from the shapes of its sources."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Protocol

from scheduler.errors import VerifyError
from scheduler.ir.ops import ELEMENTWISE, REDUCERS, SCALAR_LEVEL, Op, Shape


class Source(Protocol):
    """A node, as far as shapes depend on it; `scheduler.ir.node.Node` is one."""

    op: Op
    arg: Any
    shape: Shape


Sources = tuple[Source, ...]


def infer_shape(op: Op, src: Sources, arg: Any) -> Shape:
    """Return a node's shape; raise VerifyError if sources or argument do not fit the op."""
    if op in _SHAPE_RULES:
        return _SHAPE_RULES[op](src, arg)
    if op in ELEMENTWISE:
        shapes = {s.shape for s in src}
        if len(shapes) != 1:
            raise VerifyError(f"{op.name}: sources must have one shape, found {sorted(shapes)}")
        return src[0].shape
    if op in SCALAR_LEVEL or op is Op.CONST:
        return ()
    raise VerifyError(f"{op.name}: no shape rule")


def _iota(_: Sources, arg: Any) -> Shape:
    if arg > 1 << 31:
        raise VerifyError(f"positions along {arg} elements do not fit into int32; work on parts")
    return (int(arg),)


def _reshape(src: Sources, arg: Any) -> Shape:
    if prod(arg) != prod(src[0].shape):
        raise VerifyError(
            f"RESHAPE: {src[0].shape} has {prod(src[0].shape)} elements, {arg} has {prod(arg)}"
        )
    return tuple(arg)


def _permute(src: Sources, arg: Any) -> Shape:
    if sorted(arg) != list(range(len(src[0].shape))):
        raise VerifyError(
            f"PERMUTE: order {arg} is not a permutation of the axes of {src[0].shape}"
        )
    return tuple(src[0].shape[a] for a in arg)


def _expand(src: Sources, arg: Any) -> Shape:
    ok = len(arg) == len(src[0].shape) and all(
        s in (1, t) for s, t in zip(src[0].shape, arg, strict=True)
    )
    if not ok:
        raise VerifyError(f"EXPAND: {src[0].shape} does not expand to {arg}")
    return tuple(arg)


def _pad(src: Sources, arg: Any) -> Shape:
    pairs = arg[0]
    if len(pairs) != len(src[0].shape) or any(b < 0 or e < 0 for b, e in pairs):
        raise VerifyError(f"PAD: widths {pairs} do not fit shape {src[0].shape}")
    return tuple(s + b + e for s, (b, e) in zip(src[0].shape, pairs, strict=True))


def _shrink(src: Sources, arg: Any) -> Shape:
    if len(arg) != len(src[0].shape) or any(
        not (0 <= a <= b <= s and st >= 1) for (a, b, st), s in zip(arg, src[0].shape, strict=True)
    ):
        raise VerifyError(f"SHRINK: {arg} does not fit shape {src[0].shape}")
    return tuple(-(-(b - a) // st) for a, b, st in arg)


def _flip(src: Sources, arg: Any) -> Shape:
    if any(not 0 <= a < len(src[0].shape) for a in arg):
        raise VerifyError(f"FLIP: axes {arg} do not fit shape {src[0].shape}")
    return src[0].shape


def _window(src: Sources, arg: Any) -> Shape:
    axis, count, size, stride, dilation = arg
    shape = src[0].shape
    if not 0 <= axis < len(shape) or (count - 1) * stride + (size - 1) * dilation >= shape[axis]:
        raise VerifyError(f"WINDOW: {arg} reaches beyond axis {axis} of {shape}")
    return (*shape[:axis], count, size, *shape[axis + 1 :])


def _cat(src: Sources, arg: Any) -> Shape:
    first = src[0].shape
    for s in src:
        if len(s.shape) != len(first) or any(
            i != arg and a != b for i, (a, b) in enumerate(zip(s.shape, first, strict=True))
        ):
            raise VerifyError(f"CAT: shapes {[s.shape for s in src]} differ outside axis {arg}")
    return (*first[:arg], sum(s.shape[arg] for s in src), *first[arg + 1 :])


def _gather(src: Sources, arg: Any) -> Shape:
    data, index = src
    if not 0 <= arg < len(data.shape):
        raise VerifyError(f"GATHER: axis {arg} does not fit shape {data.shape}")
    return (*data.shape[:arg], *index.shape, *data.shape[arg + 1 :])


def _reduce(src: Sources, arg: Any) -> Shape:
    op, axes = arg[:2]
    if op not in REDUCERS or any(not 0 <= a < len(src[0].shape) for a in axes):
        raise VerifyError(f"REDUCE: {op} over axes {axes} does not fit shape {src[0].shape}")
    return tuple(1 if i in axes else s for i, s in enumerate(src[0].shape))


def _words(src: Sources, _: Any) -> Shape:
    shape = src[0].shape
    if not shape or shape[-1] % 4:
        raise VerifyError(f"WORDS: the last axis of shape {shape} is no multiple of 4")
    return (*shape[:-1], shape[-1] // 4)


def _assign(src: Sources, arg: Any) -> Shape:
    target, value = src[0], src[1]
    region = target.shape if arg is None else _region_shape(target.shape, arg, src[2:])
    if target.op is not Op.BUFFER or region != value.shape:
        raise VerifyError(
            f"ASSIGN: target {target.op.name}{target.shape} cannot take a value {value.shape}"
        )
    return target.shape


def _region_shape(shape: Shape, region: Any, index: Sources) -> Shape:
    """Return the shape of the values that go to a region of a buffer."""
    picked = [i for i, r in enumerate(region) if r is None]
    known = [(r, s) for r, s in zip(region, shape, strict=False) if r is not None]
    fits = all(0 <= a <= b <= s and st >= 1 for (a, b, st), s in known)
    if len(region) != len(shape) or len(picked) != len(index) or len(index) > 1 or not fits:
        raise VerifyError(f"ASSIGN: region {region} with {len(index)} indices does not fit {shape}")
    if any(len(i.shape) != 1 for i in index):
        raise VerifyError(f"ASSIGN: expected an index of one axis, found {index[0].shape}")
    return tuple(index[0].shape[0] if r is None else -(-(r[1] - r[0]) // r[2]) for r in region)


def _alternatives(src: Sources, _: Any) -> Shape:
    if len({s.shape for s in src}) != 1:
        raise VerifyError(f"ALTERNATIVES: forms have shapes {[s.shape for s in src]}; expected one")
    return src[0].shape


def _result(src: Sources, arg: Any) -> Shape:
    if src[0].op is not Op.CUSTOM or not 0 <= arg < len(src[0].arg.outputs):
        raise VerifyError(f"RESULT: {src[0].op.name} has no output {arg}")
    return tuple(src[0].arg.outputs[arg][0])


_SHAPE_RULES: dict[Op, Callable[[Sources, Any], Shape]] = {
    Op.BUFFER: lambda _, arg: tuple(arg.shape),
    Op.IOTA: _iota,
    Op.RESHAPE: _reshape,
    Op.PERMUTE: _permute,
    Op.EXPAND: _expand,
    Op.PAD: _pad,
    Op.SHRINK: _shrink,
    Op.FLIP: _flip,
    Op.WINDOW: _window,
    Op.CAT: _cat,
    Op.GATHER: _gather,
    Op.REDUCE: _reduce,
    Op.CONTIGUOUS: lambda src, _: src[0].shape,
    Op.WORDS: _words,
    Op.PACK: lambda _, arg: tuple(arg[0]),
    Op.ASSIGN: _assign,
    Op.CUSTOM: lambda *_: (),  # a launch has no value of its own
    Op.RESULT: _result,
    Op.ALTERNATIVES: _alternatives,
}
