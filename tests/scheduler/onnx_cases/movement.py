"""Movement, indexing, constants."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from tests.scheduler.onnx_cases.case import Const, case, f, k, w

CASES = [
    case("Reshape", f(2, 3, 4), k(0, -1)),
    case("Reshape", f(2, 3, 4), k(4, 1, 6)),
    case("Flatten", f(2, 3, 4), axis=2),
    case("Flatten", f(2, 3, 4), axis=-1),
    case("Flatten", f(2, 3, 4), axis=0),
    case("Squeeze", f(1, 3, 1, 4), opset=11, axes=[0, -2]),
    case("Squeeze", f(1, 3, 1, 4), k(2)),
    case("Squeeze", f(1, 3, 1, 4)),
    case("Unsqueeze", f(3, 4), opset=11, axes=[0, 3]),
    case("Unsqueeze", f(3, 4), k(-1, 1)),
    case("Transpose", f(2, 3, 4)),
    case("Transpose", f(2, 3, 4), perm=[1, 2, 0]),
    case("Expand", f(3, 1), k(2, 1, 4)),
    case("Concat", f(2, 3), f(2, 1), w(2, 2), axis=-1),
    case("Concat", f(2, 3), f(1, 3), axis=0),
    case("Split", f(6, 4), opset=11, outputs=3, axis=0, split=[1, 2, 3]),
    case("Split", f(6, 4), k(1, 3), outputs=2, axis=1),
    case("Split", f(6, 4), outputs=2, axis=-1),
    case("Split", f(7, 4), opset=18, outputs=3, axis=0, num_outputs=3),
    case("Tile", f(2, 3), k(2, 3)),
    case("Pad", f(3, 4), opset=10, pads=[1, 0, 0, 2], value=1.5),
    case("Pad", f(3, 4), k(1, 0, 0, 2)),
    case("Pad", f(3, 4), k(-1, 1, 2, -2), Const(np.float32(2.5))),
    *(case("Pad", f(4, 5), k(1, 2, 3, 0), mode=m) for m in ("edge", "reflect")),
    case("Pad", f(4, 5), k(1, 2, 3, 0), opset=19, mode="wrap"),
    case("Pad", f(3, 4, 5), k(1, 2), None, k(-1), opset=18),
    case("Slice", f(5, 6), opset=9, starts=[1, -3], ends=[4, 100], axes=[0, 1]),
    case("Slice", f(5, 6), k(4, -1), k(0, -100), k(0, 1), k(-2, -1)),
    case("Slice", f(5, 6), k(1), k(-1), k(-1), k(2)),
    case("Slice", f(5, 6), k(1, 2), k(3, 2**62)),
    case("Slice", f(5, 6), k(3), k(1)),
    *(case("Gather", f(3, 4, 5), Const(np.array(i)), axis=1) for i in (2, -1)),
    case("Gather", f(3, 4, 5), k(1, 2, 3), axis=1),
    case("Gather", f(3, 4, 5), Const(np.array([[0, -1], [2, 2]])), axis=-1),
    case("Gather", f(3, 4, 5), Const(np.array([[-1]])), axis=1),
    case("Gather", f(6, 4), np.array([[0, 5], [-1, 2]], np.int64)),
    case("Shape", f(2, 3, 4)),
    case("Shape", f(2, 3, 4), opset=15, start=1, end=-1),
    case("Size", f(2, 3, 4)),
    case("ConstantOfShape", k(2, 3)),
    case("ConstantOfShape", k(2), value=numpy_helper.from_array(np.array([7], np.int64))),
    case("Range", *(Const(np.array(v, np.int64)) for v in (2, 11, 3))),
    case("Range", *(Const(np.array(v, np.float32)) for v in (1.0, -1.0, -0.3))),
    case("Constant", value=numpy_helper.from_array(f(2, 3))),
    case("Constant", value_ints=[1, 2]),
    case("Constant", value_float=1.5),
]
