"""Evaluating a node whose inputs are all known, by onnx's reference evaluator.

For operators without a translator (NonZero, Trilu, OneHot, ...) that appear in shape and weight
arithmetic. Everything with a translator goes through the translator and the interpreter instead,
so that it has one meaning.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from scheduler.errors import ModelError
from scheduler.onnx_import.context import Array, Value
from scheduler.onnx_import.text import one_line
from scheduler.tensor import Tensor


def evaluate_reference(
    node: onnx.NodeProto, inputs: Sequence[Value | None], opset: int
) -> list[Value]:
    """Compute a node with numpy.

    Args:
        node: of the default domain.
        inputs: its inputs; all known.
        opset: version of the default domain.

    Raises:
        ModelError: an input depends on run-time data, or the evaluator fails.
    """
    # Loads slowly and is rarely needed.
    from onnx.reference import ReferenceEvaluator

    feeds: dict[str, Array] = {}
    for name, value in zip(node.input, inputs, strict=True):
        if isinstance(value, Tensor):
            raise ModelError(f'input "{name}" depends on run-time data; expected a constant')
        if value is not None:
            feeds[name] = value
    graph = helper.make_graph(
        [node],
        "node",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for name, value in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:
        raise ModelError(f"cannot be evaluated on constants: {one_line(error)}") from error
    results = iter(found if isinstance(found, list) else list(found))
    return [np.asarray(next(results)) if name else np.zeros(0) for name in node.output]
