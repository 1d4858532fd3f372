"""Small ONNX models, good and bad, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from runtime import run_once
from scheduler.compile import compile_plain
from scheduler.errors import ModelError
from scheduler.onnx_import import from_proto, import_model
from scheduler.tensor.tensor import evaluate

Array = NDArray[Any]
FLOAT = TensorProto.FLOAT
Port = tuple[str, Sequence[int | str] | None]


def node(op: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> onnx.NodeProto:
    """Return a node; names are separated by blanks."""
    given = inputs.split(" ") if inputs else []
    return helper.make_node(op, given, outputs.split(" "), name, **attributes)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Port] = (("x", [4]),),
    outputs: Sequence[Port] = (("y", [4]),),
    weights: dict[str, Any] | None = None,
    **options: Any,
) -> onnx.ModelProto:
    """Return a model of float32 inputs and outputs."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(n, FLOAT, s) for n, s in inputs],
        [helper.make_tensor_value_info(n, FLOAT, s) for n, s in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()],
    )
    defaults = {"opset_imports": [helper.make_opsetid("", 17)], "ir_version": 8}
    return helper.make_model(graph, **(defaults | options))


def refused(model: onnx.ModelProto | Path, *parts: str) -> str:
    """Check that a model is refused in one printable line with these parts; return it."""
    with pytest.raises(ModelError) as caught:
        import_model(model)
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) <= 400
    assert all(part in text for part in parts), text
    return text


def values_of(model: onnx.ModelProto | Path, **feeds: Any) -> list[Array]:
    """Import a model and evaluate its outputs with the interpreter."""
    given = {name: np.asarray(v, np.float32) for name, v in feeds.items()}
    return evaluate(list(import_model(model).outputs.values()), given)


def compiled(model: onnx.ModelProto, **feeds: Any) -> dict[str, Array]:
    """Compile a model and run it on the device."""
    made = compile_plain(from_proto(model))
    given = {name: np.asarray(value, np.float32) for name, value in feeds.items()}
    return run_once(made.manifest, made.data, given)
