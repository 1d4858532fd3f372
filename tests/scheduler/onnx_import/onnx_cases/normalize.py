"""Normalisation layers."""

from __future__ import annotations

import numpy as np

from tests.scheduler.onnx_import.onnx_cases.case import Const, case, f, pos, w

HALF = f(2, 3, 8).astype(np.float16)
ROWS_OF_ZEROS = np.concatenate([f(2, 3), np.zeros((1, 3), np.float32)])

CASES = [
    case("BatchNormalization", f(6), w(1), w(1), w(1), Const(pos(1)), opset=15, reference="onnx"),
    *(
        case(
            "BatchNormalization",
            f(3, 4, 5, 2),
            w(4),
            w(4),
            w(4),
            Const(pos(4)),
            opset=o,
            outputs=3,
            training_mode=1,
            momentum=0.7,
            reference="onnx",
        )
        for o in (14, 15)
    ),
    case("InstanceNormalization", f(2, 3, 7), w(3), w(3), epsilon=1e-2),
    case("InstanceNormalization", f(1, 2, 3, 4, 2), w(2), w(2)),
    case("LayerNormalization", f(2, 3, 4, 5), w(4, 5), w(5), axis=-2, outputs=3),
    case("LayerNormalization", f(2, 3, 8), w(3, 1), axis=1),
    case("LayerNormalization", HALF, Const(HALF[0, 0]), Const(HALF[1, 1]), outputs=3),
    case("GroupNormalization", f(2, 6, 4, 3), w(6), w(6), num_groups=3, opset=21),
    case("GroupNormalization", f(2, 6, 4, 3), w(3), w(3), num_groups=3, opset=18),
    case("GroupNormalization", f(2, 6, 5), w(6), w(6), num_groups=2, opset=21, epsilon=1e-2),
    case("RMSNormalization", f(2, 3, 8), w(8), opset=23),
    case("RMSNormalization", f(2, 3, 8), w(3, 1), opset=23, axis=1, epsilon=1e-1),
    case("RMSNormalization", HALF, Const(HALF[0, 0]), opset=23),
    *(case("LpNormalization", ROWS_OF_ZEROS, p=p, axis=a) for p, a in ((1, 0), (2, -1))),
    case("MeanVarianceNormalization", f(2, 3, 4, 5), opset=13),
    case("MeanVarianceNormalization", f(2, 3, 4), opset=13, axes=[0, -1], reference="onnx"),
]
