"""Reading and writing at indices, sorting."""

from __future__ import annotations

import numpy as np

from tests.scheduler.onnx_import.onnx_cases.case import Array, Const, case, draw, f, i32, k


def at(*values: object, dtype: type = np.int64) -> Array:
    return np.array(values, dtype)


def below(high: int, *shape: int) -> Array:
    return draw().integers(-high, high, shape)


def known(array: Array) -> Const:
    return Const(array)


def ties(*shape: int, dtype: type = np.float32) -> Array:
    """Return few different values, so that most of them occur several times."""
    return draw().integers(0, 4, shape).astype(dtype)


SPECIAL = np.array([[1, np.nan, np.inf, -np.inf, 0, np.nan], [-np.inf] * 6], np.float32)
DUPLICATES = np.array([[0, 2, 2], [2, 0, -1], [1, 1, 2]])
TUPLES = np.array([[0, 1], [2, 3], [0, 1], [-1, 0]])
BOX = np.array([[[1, 2], [1, 3]], [[2, 2], [2, 3]]])
LENGTHS = np.array([4, 1, 3], np.int64)
REDUCTIONS = ("none", "add", "mul", "max", "min")

CASES = [
    # Gather
    *(case("Gather", f(3, 4, 5), known(np.array(i)), axis=1) for i in (2, -1)),
    case("Gather", f(3, 4, 5), k(1, 2, 3), axis=1),
    case("Gather", f(3, 4, 5), known(np.array([[0, -1], [2, 2]])), axis=-1),
    case("Gather", f(3, 4, 5), known(np.array([[-1]])), axis=1),
    case("Gather", f(3, 4), known(np.zeros((2, 0), np.int64)), axis=1),
    case("Gather", f(6, 4), np.array([[0, 5], [-1, 2]], np.int64)),
    case("Gather", i32(6, 4), at(3, -2, dtype=np.int32), axis=1),
    case("GatherElements", f(3, 4), below(3, 2, 4), axis=0),
    case("GatherElements", f(2, 3, 4), below(4, 2, 2, 5), axis=-1),
    case("GatherElements", f(2, 3, 4), known(below(3, 2, 5, 3)), axis=1),
    case("GatherElements", f(3, 4), known(np.repeat([[2], [0]], 4, axis=1)), axis=0),
    case("GatherND", f(3, 4, 5), below(3, 2, 6, 2)),
    case("GatherND", f(3, 4, 5), known(below(3, 6, 1))),
    case("GatherND", f(2, 3, 4, 5), below(3, 2, 3, 2, 1), batch_dims=2),
    case("GatherND", f(2, 3, 4), known(below(3, 2, 5, 2)), batch_dims=1),
    # Scatter
    case("Scatter", f(3, 3), known(np.array([[1, 0, 2]])), f(1, 3), opset=9),
    case("ScatterElements", f(3, 4), known(np.array([[1], [2], [-1]])), f(3, 1), axis=1),
    *(
        case(op, f(4, 3), index, f(3, 3), opset=18, reduction=how)
        for op in ("ScatterElements",)
        for how in REDUCTIONS[1:]
        for index in (known(DUPLICATES), DUPLICATES)
    ),
    case("ScatterElements", f(4, 5), np.array([[1, 0, 2], [-1, 3, 4]]), f(2, 3), axis=1),
    case("ScatterElements", i32(2, 3, 4), at(*[[[1, 3]] * 3] * 2), i32(2, 3, 2), axis=2),
    *(
        case("ScatterND", f(3, 4, 2), index, f(4, 2), opset=18, reduction=how)
        for how in REDUCTIONS[1:]
        for index in (known(TUPLES), TUPLES)
    ),
    case("ScatterND", f(3, 4), known(BOX), f(2, 2)),
    case("ScatterND", f(3, 4), known(BOX), f(2, 2), opset=18, reduction="max"),
    case("ScatterND", f(4, 3), known(np.array([[3], [0]])), f(2, 3)),
    case("ScatterND", f(4, 3), np.array([[3], [-4]]), f(2, 3)),
    case("ScatterND", f(4, 3), np.array([[3, 1], [0, -1]]), f(2)),
    *(
        case(
            "TensorScatter",
            f(3, 2, 5, 4),
            f(3, 2, 2, 4),
            *first,
            opset=24,
            reference="onnx",
            mode=mode,
        )
        for mode, first in (
            ("linear", (at(0, 3, 1),)),
            ("circular", (at(4, 0, 8),)),
            ("linear", ()),
        )
    ),
    case("TensorScatter", f(2, 6), f(2, 3), at(1, 2), opset=24, reference="onnx", axis=1),
    # order
    case("TopK", f(3, 20), opset=9, outputs=2, k=4),
    case("TopK", f(3, 7, 2), k(3), opset=10, outputs=2, axis=1),
    case("TopK", ties(2, 9), k(9), outputs=2),
    case("TopK", ties(2, 9), k(5), outputs=2, largest=0),
    case("TopK", ties(2, 9, dtype=np.int64), k(5), outputs=2, axis=0 - 1, largest=0),
    case("TopK", ties(4, dtype=np.uint8), k(1), outputs=2, opset=24, reference="onnx"),
    case("TopK", f(2, 6).astype(np.float16), k(2), outputs=2, opset=24, reference="onnx"),
    case("TopK", f(2, 6).astype(np.float64), k(2), outputs=2, axis=0),
    case("TopK", ties(2, 900), k(3), outputs=2),
    case("TopK", SPECIAL, k(6), outputs=2, reference="onnx"),
    case("TopK", f(3, 4), k(0), outputs=2),
    *(case(op, SPECIAL[:, :3].copy(), axis=1, reference="onnx") for op in ("ArgMax", "ArgMin")),
    case("ArgMax", ties(3, 5, dtype=np.int32), axis=1, select_last_index=1),
    case("ReverseSequence", f(4, 3, 2), LENGTHS),
    case("ReverseSequence", f(3, 4), known(LENGTHS), batch_axis=0, time_axis=1),
    # what decides a shape must be known
    case("Compress", f(3, 4), known(np.array([True, False, True])), axis=0),
    case("Compress", f(3, 4), known(np.array([False, True, True, False, True]))),
    case("NonZero", known(np.array([[1, 0], [0, 3], [2, 0]], np.float32))),
    case("Unique", known(np.array([2, 1, 1, 3, 4, 3], np.float32)), outputs=4),
    case("Unique", known(np.array([2, 1, 1, 3], np.int64)), outputs=4, sorted=0),
    case("Unique", known(ties(3, 2, 4, dtype=np.int64)), outputs=4, axis=2),
]
