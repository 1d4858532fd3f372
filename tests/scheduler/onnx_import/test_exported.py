"""Networks in the form exporters give them, against onnxruntime: interpreted all, compiled some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from scheduler.onnx_import import import_model
from scheduler.tensor.tensor import evaluate
from tests.scheduler.onnx_import.exported import recurrent, styles, transformers, vision
from tests.scheduler.support.programs import load

Array = NDArray[Any]


@dataclass(frozen=True)
class Export:
    """A network, the sizes its symbolic dimensions get, and how far numbers may be apart.

    Relative to the largest number: half precision rounds each step differently, and a quantised
    value on the edge between two steps falls either way.
    """

    build: Callable[[], onnx.ModelProto]
    bind: dict[str, int] = field(default_factory=dict)
    tolerance: float = 1e-4


EXPORTS = {
    e.build.__name__: e
    for e in (
        Export(vision.regnet),
        Export(vision.yolo),
        Export(transformers.vit_tiny, {"batch": 2}),
        Export(transformers.swin_blocks),
        Export(transformers.masked_text, {"batch": 3, "tokens": 7}),
        Export(recurrent.gru_head, {"batch": 2}),
        Export(recurrent.lstm_both_ways),
        Export(recurrent.unrolled_cell),
        Export(styles.training_export),
        Export(styles.ir_version_3),
        Export(styles.half_precision, tolerance=5e-3),
        Export(styles.tf2onnx, {"unk__1": 2}),
        Export(styles.dynamic_batch, {"batch": 2, "height": 10, "width": 14}),
        Export(styles.quantized, tolerance=2e-2),
    )
}
COMPILED = ["yolo", "vit_tiny", "swin_blocks", "gru_head", "tf2onnx", "quantized"]


def feeds_of(session: ort.InferenceSession, bind: dict[str, int]) -> dict[str, Array]:
    """Return seeded inputs: integers are 0 to 19 or, of a mask, ones and then zeros."""
    rng = np.random.default_rng(2)
    feeds: dict[str, Array] = {}
    for given in session.get_inputs():
        shape = [bind.get(size, 1) if isinstance(size, str) else size for size in given.shape]
        if given.type == "tensor(float)":
            feeds[given.name] = rng.standard_normal(shape).astype(np.float32)
        elif given.name.endswith("mask"):
            ends = np.arange(1, shape[0] + 1)[:, None] * 2
            feeds[given.name] = (np.arange(shape[1]) < ends).astype(np.int64)
        else:
            feeds[given.name] = rng.integers(0, 20, shape)
    return feeds


def reference(export: Export) -> tuple[onnx.ModelProto, dict[str, Array], dict[str, Array]]:
    model = export.build()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    # As the file says: optimised, integer products saturate where the CPU has no VNNI.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    feeds = feeds_of(session, export.bind)
    names = [output.name for output in session.get_outputs()]
    return model, feeds, dict(zip(names, session.run(None, feeds), strict=True))


def assert_close(found: Array, expected: Array, tolerance: float) -> None:
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
    # A network whose answer is a constant would pass with any fault.
    assert expected.std() > 0.01


@pytest.mark.parametrize("name", EXPORTS)
def test_exported_network_agrees_with_onnxruntime(name: str) -> None:
    export = EXPORTS[name]
    model, feeds, expected = reference(export)
    imported = import_model(model, bind=export.bind)
    found = evaluate([imported.outputs[name] for name in expected], feeds)
    for got, want in zip(found, expected.values(), strict=True):
        assert_close(got, want, export.tolerance)


@pytest.mark.opencl
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_exported_network_agrees_with_onnxruntime(name: str) -> None:
    export = EXPORTS[name]
    model, feeds, expected = reference(export)
    with load(import_model(model, bind=export.bind).outputs) as program:
        found = program.run(feeds)
        for output, want in expected.items():
            assert_close(found[output], want, export.tolerance)
