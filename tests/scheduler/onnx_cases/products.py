"""Matrix products."""

from __future__ import annotations

from tests.scheduler.onnx_cases.case import case, f, w

CASES = [
    case("MatMul", f(3, 4), w(4, 5)),
    case("MatMul", f(2, 1, 3, 4), f(5, 4, 6)),
    case("MatMul", f(4), f(2, 4, 3)),
    case("MatMul", f(2, 3, 4), f(4)),
    case("MatMul", f(4), f(4)),
    case("Gemm", f(3, 4), w(4, 5), w(5)),
    case("Gemm", f(4, 3), w(5, 4), w(3, 1), transA=1, transB=1, alpha=0.5, beta=2.0),
    case("Gemm", f(3, 4), w(4, 5)),
]
