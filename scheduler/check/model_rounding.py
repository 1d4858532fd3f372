"""The coarsest rounding inside a model, which decides how close results can be.

Called by `self_check`.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from scheduler.check.outputs import QUANTISED_TOLERANCE, Rounding
from scheduler.onnx_import import OnnxModel
from scheduler.onnx_import.files.graph_checks import all_nodes

# What rounds floats that were computed to steps of 8 bits. MatMulInteger and ConvInteger are exact.
_QUANTISES = frozenset(
    {"DynamicQuantizeLSTM", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "QAttention"}
    | {"QGemm", "QuantizeLinear"}
)
_QUANTISES_PREFIX = "QLinear"


def rounding_of(model: OnnxModel, *, stores_halves: bool) -> tuple[Rounding, str]:
    """Return the coarsest rounding, and for people why it allows so much; "" if it is the usual."""
    known = frozenset(model.constants)
    found = sorted({node.op_type for node in all_nodes(model.proto) if _quantises(node, known)})
    if found:
        reason = (
            f"{', '.join(found)} rounds computed values to 8 bits: one that lies between two steps "
            "goes either way by a unit of its last place, and layers behind it add steps up, so "
            f"{QUANTISED_TOLERANCE:g} of the largest value is allowed"
        )
        return Rounding.QUANTISED, reason
    return (Rounding.HALF if stores_halves or _has_halves(model) else Rounding.FLOAT), ""


def _quantises(node: onnx.NodeProto, known: frozenset[str]) -> bool:
    if not (node.op_type in _QUANTISES or node.op_type.startswith(_QUANTISES_PREFIX)):
        return False
    return not node.input or node.input[0] not in known


def _has_halves(model: OnnxModel) -> bool:
    values = (*model.inputs, *model.proto.graph.output)
    return any(v.type.tensor_type.elem_type == TensorProto.FLOAT16 for v in values) or any(
        array.dtype == np.float16 for array in model.constants.values()
    )
