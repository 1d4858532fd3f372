"""Matrix products, products by equation, determinants."""

from __future__ import annotations

import numpy as np

from tests.scheduler.onnx_import.onnx_cases.case import case, f, i32, w

SINGULAR = np.array([[0, 2, 1], [0, 4, 2], [3, 1, 1]], np.float32)
# The first pivot is 0 in every batch.
PIVOTS = f(2, 5, 5) * (1 - np.eye(5, dtype=np.float32))

CASES = [
    case("MatMul", f(3, 4), w(4, 5)),
    case("MatMul", f(2, 1, 3, 4), f(5, 4, 6)),
    case("MatMul", f(4), f(2, 4, 3)),
    case("MatMul", f(2, 3, 4), f(4)),
    case("MatMul", f(4), f(4)),
    case("MatMul", i32(3, 4), i32(4, 2)),
    case("MatMul", f(3, 4).astype(np.float64), f(4, 2).astype(np.float64)),
    case("MatMul", f(3, 0), f(0, 2)),
    case("Gemm", f(3, 4), w(4, 5), w(5)),
    case("Gemm", f(4, 3), w(5, 4), w(3, 1), transA=1, transB=1, alpha=0.5, beta=2.0),
    case("Gemm", f(3, 4), w(4, 5)),
    case("Gemm", f(3, 4), f(4, 5), np.float32(0.5)),
    case("Gemm", f(3, 4), f(4, 5), f(3, 5), beta=0.0),
    *(
        case("Einsum", *operands, equation=equation)
        for equation, operands in (
            ("bhqd,bhkd->bhqk", (f(2, 3, 4, 5), f(2, 3, 6, 5))),
            ("bqhd, bkhd -> bhqk", (f(2, 4, 3, 5), f(2, 6, 3, 5))),
            ("bsd,dnh->bsnh", (f(2, 3, 4), w(4, 2, 5))),
            ("...ij,...jk", (f(2, 3, 4), f(3, 4, 5)[:1])),
            ("ij->ji", (f(3, 4),)),
            ("ij->", (f(3, 4),)),
            ("ii->i", (f(4, 4),)),
            ("aii->a", (f(2, 3, 3),)),
            ("iji,j->i", (f(3, 4, 3), f(4))),
            ("i,j", (f(3), f(4))),
            ("i,i", (f(4), f(4))),
            ("ij,ik,kl->jl", (f(2, 3), f(2, 4), f(4, 5))),
            ("aB,Bc,cd->", (f(2, 3), f(3, 4), f(4, 2))),
            ("...a->a...", (f(2, 3, 4),)),
            ("ij,ij->ij", (i32(2, 3), i32(2, 3))),
        )
    ),
    *(case("Det", f(*shape), opset=22, reference="onnx") for shape in ((2, 1, 1), (3, 2, 2))),
    *(case("Det", x, opset=22, reference="onnx") for x in (SINGULAR, PIVOTS, f(2, 6, 6))),
]
