"""Reading and writing at indices, sorting; movement, constants."""

import numpy as np
from onnx import numpy_helper

from tests.scheduler.onnx_import.onnx_cases.case import (
    Array,
    Const,
    case,
    f,
    flags,
    i32,
    ints,
    k,
    one,
    own,
    w,
)


def below(high: int, *shape: int) -> Array:
    return ints(-high, high, *shape)


def ties(*shape: int, dtype: type = np.float32) -> Array:
    """Return few different values, so that most of them occur several times."""
    return ints(0, 4, *shape, dtype=dtype)


SPECIAL = np.array([[1, np.nan, np.inf, -np.inf, 0, np.nan], [-np.inf] * 6], np.float32)
DUPLICATES = np.array([[0, 2, 2], [2, 0, -1], [1, 1, 2]])
TUPLES = np.array([[0, 1], [2, 3], [0, 1], [-1, 0]])
BOX = one([[[1, 2], [1, 3]], [[2, 2], [2, 3]]])
# Start, end, axis and step of slices.
BOUNDS: list[tuple[int, ...]] = [(2**31 - 1, -(2**63), 1, -1), (-100, 2**63 - 1, -2, 3)]
BOUNDS += [(-100, -100, 0, -1), (1, -1, -1, 2), (3, 1)]
LENGTHS = np.array([4, 1, 3], np.int64)
REDUCTIONS = ("add", "mul", "max", "min")

CASES = [
    # Gather
    *(case("Gather", f(3, 4, 5), one(i), axis=1) for i in ([1, 2, 3], [[-1]])),
    case("Gather", f(3, 4), one(np.zeros((2, 0))), axis=1),
    case("GatherElements", f(3, 4), one([[2] * 4, [0] * 4]), axis=0),
    case("GatherND", f(2, 3, 4, 5), below(3, 2, 3, 2, 1), batch_dims=2),
    case("GatherND", f(2, 3, 4), Const(below(3, 2, 5, 2)), batch_dims=1),
    # Scatter
    case("Scatter", f(3, 3), one([[1, 0, 2]]), f(1, 3), opset=9),
    case("ScatterElements", f(3, 4), one([[1], [2], [-1]]), f(3, 1), axis=1),
    *(
        case("ScatterElements", f(4, 3), index, f(3, 3), opset=18, reduction=how)
        for how in REDUCTIONS
        for index in (one(DUPLICATES), DUPLICATES)
    ),
    case("ScatterElements", f(4, 5), np.array([[1, 0, 2], [-1, 3, 4]]), f(2, 3), axis=1),
    case("ScatterElements", i32(2, 3, 4), np.array([[[1, 3]] * 3] * 2), i32(2, 3, 2), axis=2),
    *(
        case("ScatterND", f(3, 4, 2), index, f(4, 2), opset=18, reduction=how)
        for how in REDUCTIONS
        for index in (one(TUPLES), TUPLES)
    ),
    case("ScatterND", f(3, 4), BOX, f(2, 2)),
    case("ScatterND", f(3, 4), BOX, f(2, 2), opset=18, reduction="max"),
    case("ScatterND", f(4, 3), one([[3], [0]]), f(2, 3)),
    case("ScatterND", f(4, 3), np.array([[3], [-4]]), f(2, 3)),
    case("ScatterND", f(4, 3), np.array([[3, 1], [0, -1]]), f(2)),
    *(
        own("TensorScatter", f(3, 2, 5, 4), f(3, 2, 2, 4), *first, opset=24, mode=mode)
        for mode, *first in (
            ("linear", np.array([0, 3, 1])),
            ("circular", np.array([4, 0, 8])),
            ("linear",),
        )
    ),
    own("TensorScatter", f(2, 6), f(2, 3), np.array([1, 2]), opset=24, axis=1),
    # order
    case("TopK", f(3, 20), opset=9, outputs=2, k=4),
    case("TopK", f(3, 7, 2), k(3), opset=10, outputs=2, axis=1),
    *(case("TopK", ties(2, 9), k(n), outputs=2, largest=high) for n, high in ((9, 1), (5, 0))),
    case("TopK", ties(2, 9, dtype=np.int64), k(5), outputs=2, axis=-1, largest=0),
    own("TopK", ties(4, dtype=np.uint8), k(1), outputs=2, opset=24),
    own("TopK", f(2, 6).astype(np.float16), k(2), outputs=2, opset=24),
    case("TopK", f(2, 6).astype(np.float64), k(2), outputs=2, axis=0),
    case("TopK", ties(2, 900), k(3), outputs=2),
    own("TopK", SPECIAL, k(6), outputs=2),
    case("TopK", f(3, 4), k(0), outputs=2),
    *(own(op, SPECIAL[:, :3].copy(), axis=1) for op in ("ArgMax", "ArgMin")),
    case("ArgMax", ties(3, 5, dtype=np.int32), axis=1, select_last_index=1),
    case("ReverseSequence", f(4, 3, 2), LENGTHS),
    case("ReverseSequence", f(3, 4), one(LENGTHS), batch_axis=0, time_axis=1),
    # what decides a shape must be known
    case("Compress", f(3, 4), k(1, 0, 1, dtype=bool), axis=0),
    case("Compress", f(3, 4), k(0, 1, 1, 0, 1, dtype=bool)),
    case("NonZero", one([[1, 0], [0, 3], [2, 0]], np.float32)),
    case("Unique", k(2, 1, 1, 3, 4, 3, dtype=np.float32), outputs=4),
    case("Unique", k(2, 1, 1, 3), outputs=4, sorted=0),
    case("Unique", Const(ties(3, 2, 4, dtype=np.int64)), outputs=4, axis=2),
    # movement
    *(case("Reshape", f(2, 3, 4), to) for to in (k(0, -1), k(4, 1, 6))),
    *(case("Flatten", f(2, 3, 4), axis=a) for a in (2, -1, 0, 3)),
    case("Reshape", f(2, 3), k(0, 1, -1)),
    case("Reshape", f(0, 3), k(3, 0), allowzero=1),
    case("Squeeze", f(1, 3, 1, 4), opset=11, axes=[0, -2]),
    *(case("Squeeze", f(1, 3, 1, 4), *axes) for axes in ((k(2),), ())),
    case("Unsqueeze", f(3, 4), opset=11, axes=[0, 3]),
    case("Unsqueeze", f(3, 4), k(-1, 1)),
    case("Unsqueeze", one(2.0, np.float32), k(0)),
    case("Transpose", f(2, 3, 4)),
    case("Transpose", f(2, 3, 4), perm=[1, 2, 0]),
    *(case("Expand", f(*a), k(*b)) for a, b in (((3, 1), (2, 1, 4)), ((2, 3), (1, 1)))),
    case("Concat", f(2, 3), f(2, 1), w(2, 2), axis=-1),
    case("Split", f(6, 4), outputs=2, axis=-1),
    case("Split", f(7, 4), opset=18, outputs=3, axis=0, num_outputs=3),
    own("Split", f(5, 2), opset=18, outputs=4, axis=0, num_outputs=4),
    case("Split", f(4, 2), k(0, 4), outputs=2, axis=0),
    *(case("Tile", f(2, 3), k(*times)) for times in ((2, 3), (0, 1))),
    case("Pad", f(3, 4), opset=10, pads=[1, 0, 0, 2], value=1.5),
    case("Pad", f(3, 4), k(-1, 1, 2, -2), one(2.5, np.float32)),
    case("Pad", f(3, 4, 5), k(1, 0, 2, 0, 1, 3), mode="reflect"),
    case("Pad", i32(2, 3), k(1, 0, 0, 1), one(7, np.int32)),
    case("Pad", f(2, 3).astype(np.float64), k(1, 0, 0, 1), one(np.inf, np.float64)),
    case("Pad", flags(2, 3), k(1, 0, 0, 1), one(True, bool)),
    case("Pad", f(2, 3), k(1, -1, 0, 1), np.float32(1.5)),
    case("Pad", f(0, 3), k(1, 0, 1, 0)),
    *(case("Slice", f(5, 6), *map(k, bounds)) for bounds in BOUNDS),
    case("Slice", f(5, 6), *(k(v, dtype=np.int32) for v in (-1, -(2**31), 0, -2))),
    case("Slice", f(5, 6), opset=9, starts=[1, -3], ends=[4, 100], axes=[0, 1]),
    case("Slice", f(5, 6), k(4, -1), k(0, -100), k(0, 1), k(-2, -1)),
    case("Slice", f(5, 6), k(1, 2), k(3, 2**62)),
    case("Shape", f(2, 3, 4)),
    case("Shape", f(2, 3, 4), opset=15, start=1, end=-1),
    case("Size", f(2, 3, 4)),
    case("ConstantOfShape", k(2, 3)),
    case("ConstantOfShape", k(2), value=numpy_helper.from_array(np.array([7], np.int64))),
    case("Range", *map(one, (2, 11, 3))),
    case("Range", *(one(v, np.float32) for v in (1.0, -1.0, -0.3))),
    case("Constant", value=numpy_helper.from_array(f(2, 3))),
    case("Constant", value_ints=[1, 2]),
    case("Constant", value_float=1.5),
    case("Constant", value=numpy_helper.from_array(np.array(True))),
]
