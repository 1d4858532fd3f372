"""Values known while importing: large ones are computed as numpy would, too large ones refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler.errors import ModelError
from scheduler.onnx_import import fold, import_model
from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.onnx_import.onnx_cases.case import Case, Const, case, draw, f, k
from tests.scheduler.onnx_import.test_ops import build, reference

Array = NDArray[Any]


def boxes(images: int, count: int) -> Array:
    """Return boxes that overlap a lot, their corners in any order, some without an area."""
    first = draw().random((images, count, 2)) * 10
    second = first + draw().integers(-4, 5, (images, count, 2))
    return np.concatenate([first, second], -1).astype(np.float32)


def scores(*shape: int) -> Array:
    return draw().integers(0, 40, shape).astype(np.float32) / 40


def limit(value: float) -> Array:
    return np.array([value], np.float32)


CASES = [
    case("TopK", f(200_000), k(200_000), outputs=2),
    case("TopK", f(200_000), k(1000), outputs=2, largest=0),
    case("Pad", f(2, 3), k(0, 100_000, 0, 70_000), mode="edge"),
    case("Pad", f(3, 4), k(70_000, -1, 0, -2), mode="edge"),
    case("NonMaxSuppression", boxes(2, 300), scores(2, 3, 300), k(20), limit(0.3), limit(0.2)),
    case("NonMaxSuppression", boxes(1, 200), scores(1, 2, 200), k(500), limit(0.6)),
    case(
        "NonMaxSuppression",
        abs(boxes(1, 200)),
        scores(1, 1, 200),
        k(9),
        limit(0.4),
        center_point_box=1,
    ),
    case("NonMaxSuppression", boxes(1, 20), scores(1, 1, 20), k(0)),
    case("Det", f(5, 20, 20), opset=22, reference="onnx"),
    case(
        "MatMulInteger",
        draw().integers(0, 256, (300, 400)).astype(np.uint8),
        draw().integers(0, 256, (400, 300)).astype(np.uint8),
        opset=10,
    ),
    case("MaxPool", f(1, 3, 60, 60), kernel_shape=[9, 9], pads=[4, 4, 4, 4]),
    case("MaxPool", f(1, 8, 90, 70), kernel_shape=[7, 5], dilations=[2, 3], strides=[1, 2]),
    case("AveragePool", f(1, 3, 60, 60), kernel_shape=[11, 9], pads=[5, 4, 3, 2], ceil_mode=1),
]


@pytest.mark.parametrize("folded", [False, True], ids=["run", "fold"])
@pytest.mark.parametrize("one", CASES, ids=lambda c: c.label)
def test_large_values_agree_with_onnxruntime(one: Case, folded: bool) -> None:
    if not folded and one.op in ("NonMaxSuppression", "Det"):
        folded = True
    proto, feeds = build(one, folded=folded)
    expected = reference(one, proto, feeds)
    found = evaluate(list(import_model(proto).outputs.values()), feeds)
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-4 if one.op == "Det" else 1e-5, atol=1e-6)


def test_too_much_work_is_refused_before_it_begins() -> None:
    long = Tensor.zeros(2**17, 1).contiguous()
    compared = (long < long.reshape((1, -1))).sum(1)
    with pytest.raises(ModelError, match="on the way"):
        fold.evaluate_known([compared], 0)
    some = Tensor.zeros(1000).contiguous() + 1.0
    values, spent = fold.evaluate_known([some], 0)
    assert values[0].tolist() == [1.0] * 1000
    assert spent == 1000
    with pytest.raises(ModelError, match="for a model are supported"):
        fold.evaluate_known([some], fold.MAX_MODEL_WORK)


def test_a_model_that_computes_too_much_is_refused() -> None:
    one = case("Conv", f(1, 64, 700, 700), Const(f(64, 64, 9, 9)))
    with pytest.raises(ModelError, match="operations on elements"):
        import_model(build(one, folded=True)[0])
