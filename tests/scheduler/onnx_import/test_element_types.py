"""Element types that are carried: every value, rounding at every border, whole models."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.onnx_import import import_model
from scheduler.onnx_import.element_types import CARRIED, CarriedType
from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.onnx_import.onnx_models import Array, parsed, results
from tests.scheduler.support.programs import load

FLOATS = [kind for kind in CARRIED.values() if kind.format is not None]
INTEGERS = [kind for kind in CARRIED.values() if kind.format is None]


def numpy_type(kind: CarriedType) -> np.dtype[Any]:
    return np.dtype(helper.tensor_dtype_to_np_dtype(kind.code))


def codes_of(kind: CarriedType) -> Array:
    count = 16 if kind.name == "float4e2m1" else 1 << 8 * kind.storage.itemsize
    return np.arange(count).astype(kind.storage.np)


def borders(kind: CarriedType) -> Array:
    """Every value of a type, the middles between neighbours, and their float32 neighbours."""
    values = codes_of(kind).view(numpy_type(kind)).astype(np.float32)
    values = np.unique(values[np.isfinite(values)])
    with np.errstate(all="ignore"):
        middles = (values[1:] / 2 + values[:-1] / 2).astype(np.float32)
        near = [np.nextafter(middles, np.float32(s)) for s in (-np.inf, np.inf)]
        special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, values[-1] * 1.1], np.float32)
        return np.concatenate([values, middles, *near, special]).astype(np.float32)


@pytest.mark.parametrize("kind", FLOATS, ids=lambda k: k.name)
def test_rounding_and_bits_are_those_of_ml_dtypes(kind: CarriedType) -> None:
    x = borders(kind)
    if kind.name == "float8e8m0":
        x = x[(x > 0) | np.isnan(x)]  # a type of positive values
    given = Tensor.input("x", x.shape)
    saturate = kind.name == "float4e2m1"
    rounded = kind.round(given, saturate=saturate, mode="nearest")
    values, bits = evaluate([rounded, kind.encode(rounded)], {"x": x})
    with np.errstate(all="ignore"):
        want = x.astype(numpy_type(kind))
    wide = want.astype(np.float32)
    if kind.name == "float8e8m0":
        # ml_dtypes rounds halves to even exponents there, ONNX says up.
        with np.errstate(all="ignore"):
            wide = np.exp2(np.floor(np.log2(x) + np.log2(np.float32(4 / 3))))
        assert kind.format is not None
        compared = np.isfinite(wide) & (wide <= kind.format.largest)
        assert (np.abs(np.log2(values) - np.log2(wide))[compared] <= 1).all()
        return
    np.testing.assert_array_equal(values, wide)
    known = np.isfinite(x)  # NaN has several codes, or none
    np.testing.assert_array_equal(bits[known], want.view(kind.storage.np)[known])


@pytest.mark.parametrize("kind", FLOATS, ids=lambda k: k.name)
def test_every_code_survives_decoding_and_encoding(kind: CarriedType) -> None:
    codes = codes_of(kind)
    stored = Tensor.input("x", codes.shape, kind.storage)
    values = kind.decode(stored)
    found, again = evaluate([values, kind.encode(values)], {"x": codes})
    np.testing.assert_array_equal(found, codes.view(numpy_type(kind)).astype(np.float32))
    known = ~np.isnan(found)
    np.testing.assert_array_equal(again[known], codes[known])
    assert np.isnan(again[~known].view(numpy_type(kind)).astype(np.float32)).all()


@pytest.mark.parametrize("kind", INTEGERS, ids=lambda k: k.name)
def test_small_integers_wrap_and_saturate(kind: CarriedType) -> None:
    x = np.arange(-40, 41).astype(np.int32)
    given = Tensor.input("x", x.shape, Tensor.weight(x).dtype)
    wrapped, limited = evaluate([kind.round(given), kind.saturated(given)], {"x": x})
    np.testing.assert_array_equal(wrapped, x.astype(numpy_type(kind)).astype(kind.carrier.np))
    info: Any = ml_dtypes.iinfo(numpy_type(kind))  # type: ignore[no-untyped-call]  # untyped library
    np.testing.assert_array_equal(limited, np.clip(x, info.min, info.max))


def bfloat16(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(ml_dtypes.bfloat16)


# y = relu(x w) in bfloat16, and its float32 form.
MODEL = parsed(
    """(bfloat16[2,8] x) => (bfloat16[2,4] y, float[2,4] z) {
      m = MatMul(x, w)
      y = Relu(m)
      z = Cast <to = 1> (y)
    }""",
    22,
    w=bfloat16(8, 4),
)


@pytest.mark.opencl
def test_bfloat16_model_takes_and_gives_bits_on_the_device() -> None:
    x = bfloat16(2, 8)
    expected = [np.asarray(v) for v in ReferenceEvaluator(MODEL).run(None, {"x": x})]
    with load(import_model(MODEL).outputs) as program:
        found = program.run({"x": x.view(np.uint16)})
        assert found["y"].dtype == np.uint16
        values = found["y"].view(ml_dtypes.bfloat16).astype(np.float32), found["z"]
        for a, b in zip(values, expected, strict=True):
            np.testing.assert_allclose(a, b.astype(np.float32), rtol=2**-7, atol=1e-2)


def test_bfloat16_outputs_are_the_nearest_values() -> None:
    x, w = bfloat16(16, 32), bfloat16(32, 8)
    model = parsed("(bfloat16[16,32] x) => (bfloat16[16,8] y) { y = MatMul(x, w) }", 22, w=w)
    (found,) = results(model, {"x": x.view(np.uint16)})
    exact = x.astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_array_equal(found.view(ml_dtypes.bfloat16), exact.astype(ml_dtypes.bfloat16))


def test_eye_like_takes_types_that_are_carried() -> None:
    text = "(float[2,3] x) => (bfloat16[2,3] y) { y = EyeLike <dtype = 16> (x) }"
    (found,) = results(parsed(text, 22), {"x": np.zeros((2, 3))})
    np.testing.assert_array_equal(found.view(ml_dtypes.bfloat16).astype(int), np.eye(2, 3))


def test_bfloat16_weights_stay_two_bytes() -> None:
    order = toposort([import_model(MODEL).outputs["z"].node])
    weights = [n.arg.data for n in order if n.op is Op.BUFFER and n.arg.kind == "weight"]
    assert [w.dtype for w in weights] == [np.uint16]
