"""Losses."""

from __future__ import annotations

import numpy as np

from tests.scheduler.onnx_import.onnx_cases.case import case, f, pos

TARGETS = np.random.default_rng(3).integers(0, 5, (3, 2)).astype(np.int64)
WITH_HOLES = np.array([[0, -1, 4, 2], [-1, 3, 1, 0]], np.int32)
CASES = [
    *(
        case("NegativeLogLikelihoodLoss", -pos(3, 5, 2), TARGETS, opset=13, reduction=r)
        for r in ("none", "sum", "mean")
    ),
    case("NegativeLogLikelihoodLoss", -pos(6, 5), TARGETS.reshape(6), pos(5), opset=12),
    *(
        case(
            op,
            -pos(2, 5, 4),
            WITH_HOLES,
            *weights,
            opset=13,
            outputs=n,
            reduction=r,
            ignore_index=-1,
        )
        for op, n in (("NegativeLogLikelihoodLoss", 1), ("SoftmaxCrossEntropyLoss", 2))
        for weights, r in (((), "mean"), ((pos(5),), "mean"), ((pos(5),), "none"))
    ),
    case("SoftmaxCrossEntropyLoss", f(3, 5, 2) * 50, TARGETS, opset=13, reduction="none"),
    case("SoftmaxCrossEntropyLoss", f(6, 5), TARGETS.reshape(6), pos(5), opset=12, reduction="sum"),
]
