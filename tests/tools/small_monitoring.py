"""A driver monitoring artifact that computes next to nothing, for tests of processes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from scheduler.compile import compile_monitoring

WIDTH = 596


def write_small_monitoring(path: Path) -> Path:
    """Write an artifact of `dmonitoring-2025` that sees the view's first 64 pixels.

    Args:
        path: where to; the model lies beside it as ONNX.
    """
    constants: dict[str, NDArray[Any]] = {
        "start": np.array([0], np.int64),
        "stop": np.array([64], np.int64),
        "axis": np.array([1], np.int64),
        "weights": np.random.default_rng(0).normal(0, 1e-3, (64, WIDTH)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Slice", ["input_img", "start", "stop", "axis"], ["part"]),
        helper.make_node("Cast", ["part"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["pixels", "weights"], ["seen"]),
        helper.make_node("ReduceSum", ["calib"], ["angles"], keepdims=1),
        helper.make_node("Add", ["seen", "angles"], ["outputs"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "monitoring",
        [
            value("input_img", TensorProto.UINT8, (1, 1382400)),
            value("calib", TensorProto.FLOAT, (1, 3)),
        ],
        [value("outputs", TensorProto.FLOAT, (1, WIDTH))],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    source = path.with_suffix(".onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), source)
    compile_monitoring(source).build().write(path)
    return path
