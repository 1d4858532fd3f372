"""Activations."""

from __future__ import annotations

from tests.scheduler.onnx_cases.case import case, f, w

CASES = [
    *(case(op, f(3, 5)) for op in ("Elu", "Selu", "LeakyRelu", "HardSigmoid", "Celu")),
    case("Elu", f(9), alpha=0.3),
    case("Selu", f(9), alpha=1.1, gamma=0.7),
    case("LeakyRelu", f(9), alpha=0.3),
    case("HardSigmoid", f(9), alpha=0.3, beta=0.4),
    case("Celu", f(9), alpha=0.4),
    case("ThresholdedRelu", f(9), alpha=0.4),
    case("PRelu", f(2, 3, 4), w(3, 1)),
    case("HardSwish", f(9) * 4),
    case("Gelu", f(9), opset=20),
    case("Gelu", f(9), opset=20, approximate="tanh"),
    *(case(op, f(2, 3, 4), opset=o) for op in ("Softmax", "LogSoftmax") for o in (11, 13)),
    *(case(op, f(2, 3, 4), opset=o, axis=0) for op in ("Softmax", "LogSoftmax") for o in (11, 13)),
]
