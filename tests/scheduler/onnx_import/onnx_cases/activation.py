"""Activations."""

from __future__ import annotations

import numpy as np

from tests.scheduler.onnx_import.onnx_cases.case import case, f, i32, w

INF, NAN = np.inf, np.nan
FAR = np.array([-INF, -1e4, -100.0, -30.0, -1.0, 0.0, 1.0, 100.0, 1e4, INF, NAN], np.float32)
ROWS = np.array([[1e4, -1e4, 0], [-INF, 0, 1], [3e38, 3e38, -3e38], [NAN, 0, 1]], np.float32)
ALL_OUT = np.array([[-INF, -INF], [0, -INF]], np.float32)

CASES = [
    *(case(op, f(3, 5)) for op in ("Elu", "Selu", "LeakyRelu", "HardSigmoid", "Celu")),
    case("Elu", f(9), alpha=0.3),
    case("Selu", f(9), alpha=1.1, gamma=0.7),
    case("LeakyRelu", f(9), alpha=0.3),
    case("HardSigmoid", f(9), alpha=0.3, beta=0.4),
    case("Celu", f(9), alpha=0.4),
    case("ThresholdedRelu", f(9), alpha=0.4),
    case("PRelu", f(2, 3, 4), w(3, 1)),
    case("PRelu", i32(2, 5), i32(5), opset=16, reference="onnx"),
    *(case("Swish", f(9) * 4, opset=24, reference="onnx", alpha=a) for a in (1.0, 0.3)),
    *(case(op, FAR, opset=18) for op in ("Softplus", "Mish", "Selu", "HardSigmoid", "Sigmoid")),
    case("Softplus", FAR.astype(np.float64), reference="onnx"),
    case("Softplus", FAR.astype(np.float16), opset=22, reference="onnx"),
    *(case(op, ROWS, opset=13) for op in ("Softmax", "LogSoftmax")),
    case("Softmax", ALL_OUT, opset=13, reference="onnx"),
    case("HardSwish", f(9) * 4),
    case("Gelu", f(9), opset=20),
    case("Gelu", f(9), opset=20, approximate="tanh"),
    *(case(op, f(2, 3, 4), opset=o) for op in ("Softmax", "LogSoftmax") for o in (11, 13)),
    *(case(op, f(2, 3, 4), opset=o, axis=0) for op in ("Softmax", "LogSoftmax") for o in (11, 13)),
]
