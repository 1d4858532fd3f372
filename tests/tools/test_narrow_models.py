"""The models of the benchmarks in halves and in eight bits."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from benchmarks.narrow_models import EIGHT_BITS, HALVES, in_halves, write_eight_bits
from tests.scheduler.onnx_import.onnx_models import Array, ort_session
from tests.scheduler.onnx_import.test_networks import SMALL
from tools.example_models import BUILDERS


@pytest.fixture(scope="module")
def whole() -> onnx.ModelProto:
    model, _ = SMALL["fastvit"](0)
    return model


def answer(model: onnx.ModelProto, dtype: type = np.float32) -> Array:
    image: Array = np.random.default_rng(1).standard_normal((1, 3, 32, 64)).astype(dtype)
    found: Array = ort_session(model).run(None, {"image": image})[0]
    return found


def kinds(model: onnx.ModelProto) -> Counter[int]:
    """Return how many elements weights of each type have."""
    return sum(
        (Counter({t.data_type: int(np.prod(t.dims))}) for t in model.graph.initializer), Counter()
    )


def test_each_is_of_an_example() -> None:
    assert {*HALVES, *EIGHT_BITS} <= set(BUILDERS)


def test_halves_have_half_the_weights_and_nearly_the_answer(whole: onnx.ModelProto) -> None:
    half = in_halves(whole)
    assert kinds(half) == {TensorProto.FLOAT16: kinds(whole)[TensorProto.FLOAT]}
    found, expected = answer(half, np.float16), answer(whole)
    assert found.dtype == np.float16
    assert 0 < np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_eight_bits_are_between_pairs_of_nodes(whole: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(whole, tmp_path / "whole.onnx")
    write_eight_bits(tmp_path / "whole.onnx", tmp_path / "int8.onnx")
    narrow = onnx.load(tmp_path / "int8.onnx")
    nodes = Counter(node.op_type for node in narrow.graph.node)
    assert nodes["DequantizeLinear"] > nodes["QuantizeLinear"] > nodes["Conv"] > 0
    assert kinds(narrow)[TensorProto.INT8] > 0.9 * kinds(whole)[TensorProto.FLOAT]
    found, expected = answer(narrow), answer(whole)
    assert 0 < np.abs(found - expected).max() < 0.5 * np.abs(expected).max()
