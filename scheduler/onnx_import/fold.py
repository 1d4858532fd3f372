"""The evaluation of nodes whose inputs are all known, by the interpreter and within bounds.

What takes too long or too much memory is refused before it begins. The few operators of ONNX
without a translator are left to onnx's reference evaluator.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from math import prod

import numpy as np
import onnx
from onnx import helper

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import MOVEMENT, Op
from scheduler.ir.rewrite import SERIAL, keep_form
from scheduler.onnx_import.context import Array, Value
from scheduler.onnx_import.limits import MAX_KNOWN_BYTES, check_shape
from scheduler.onnx_import.text import one_line
from scheduler.tensor.tensor import Tensor, evaluate

# Elements computed or moved for one node, and for a whole model: about a quarter of a minute, and
# two minutes, of numpy (1 to 2 ns for each, 2026-11). Weights of billions of parameters stay below.
MAX_NODE_WORK = 2**33
MAX_MODEL_WORK = 2**36  # eight such nodes
# Intermediate values may be larger than the result by this factor.
_ON_THE_WAY = 2
# numpy's products of matrices take less than its other operations.
_PRODUCTS_AT_ONCE = 4
_VIEWS = MOVEMENT - {Op.PAD, Op.CAT}
_FREE = frozenset({Op.BUFFER, Op.CONST, Op.CONTIGUOUS, Op.CUSTOM})


def evaluate_known(tensors: Sequence[Tensor], spent: int) -> tuple[list[Array], int]:
    """Compute values that depend on no input by the interpreter; it defines their meaning.

    `spent` elements were computed before for the same model; the new number is returned with the
    values. Raises ModelError if a value is too large, or they take too long.
    """
    for tensor in tensors:
        check_shape(tensor.shape, tensor.dtype.itemsize, "its value, known now", MAX_KNOWN_BYTES)
    nodes = [t.node for t in tensors]
    kept = keep_form(nodes, SERIAL)  # what the interpreter computes
    order = toposort([kept[node] for node in nodes])
    products = {n.src[0] for n in order if _is_product(n)}
    work = sum(_work(node, products) for node in order)
    if work > MAX_NODE_WORK or spent + work > MAX_MODEL_WORK:
        raise ModelError(
            f"its inputs are known, and computing it now takes {work:.3g} operations on elements, "
            f"after {spent:.3g} for nodes before it; at most {MAX_NODE_WORK:.3g} for a node and "
            f"{MAX_MODEL_WORK:.3g} for a model are supported: make it an input, or save its value"
        )
    return evaluate(tensors), spent + work


def _work(node: Node, products: AbstractSet[Node]) -> int:
    """Return how many elements a node computes or moves; products that are summed are free."""
    if node.op in _FREE or node in products or (node.op in _VIEWS and not _is_copy(node)):
        return 0
    if node.op is Op.REDUCE:
        source = node.src[0]
        return prod(source.shape) // (_PRODUCTS_AT_ONCE if source in products else 1)
    size = prod(node.shape)
    if size * node.dtype.itemsize > _ON_THE_WAY * MAX_KNOWN_BYTES:
        raise ModelError(
            f"its inputs are known, and computing it now takes an array of shape "
            f"{list(node.shape)} on the way, more than {_ON_THE_WAY * MAX_KNOWN_BYTES} bytes: "
            "make it an input, or save its value"
        )
    return size


def _is_copy(node: Node) -> bool:
    """Whether a reshape of a view may have to move elements: more than axes of size 1 change."""
    if node.op is not Op.RESHAPE or node.src[0].op not in _VIEWS:
        return False
    before, after = ([n for n in x.shape if n > 1] for x in (node.src[0], node))
    return before != after


def _is_product(node: Node) -> bool:
    """Whether a sum of products that the interpreter computes without the products."""
    if node.op is not Op.REDUCE or node.arg[0] is not Op.ADD:
        return False
    return node.src[0].op is Op.MUL and node.dtype is not dt.bool_


def evaluate_reference(
    node: onnx.NodeProto, inputs: Sequence[Value | None], opset: int
) -> list[Value]:
    """Compute a node of known inputs with numpy, or raise ModelError."""
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
