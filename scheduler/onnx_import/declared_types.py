"""Says where a model declares another element type for a value than its nodes compute.

Converters to halves leave such contradictions: a Cast to float32 in front of a value that is
declared float16. What the nodes compute is what is compiled; onnxruntime refuses such a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from runtime.quantities import count_text
from scheduler.errors import ModelError
from scheduler.onnx_import.context import AnyValue, ValueList
from scheduler.onnx_import.element_types import graph_dtype, type_name
from scheduler.onnx_import.files.load import OnnxModel
from scheduler.onnx_import.support import node_label
from scheduler.onnx_import.text import printable

# One line for each of the first ones; whoever mends these finds the others likewise.
MOST_NOTES: Final = 3


def contradictions(model: OnnxModel, values: Mapping[str, AnyValue]) -> tuple[str, ...]:
    """Return a note for each of the first values with another type than declared.

    Args:
        model: of which all nodes are translated.
        values: of its names.
    """
    found = list(_contradictions(model, values))
    notes = found[:MOST_NOTES]
    if len(found) > MOST_NOTES:
        more = count_text(len(found) - MOST_NOTES, "more value")
        notes.append(f"{more} of another type than declared")
    return tuple(notes)


def _contradictions(model: OnnxModel, values: Mapping[str, AnyValue]) -> Iterator[str]:
    graph = model.proto.graph
    declared = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
    for node in graph.node:
        for name in node.output:
            code, value = declared.get(name, 0), values.get(name)
            if not code or value is None or isinstance(value, ValueList):
                continue
            computed = value.dtype.name
            try:
                expected = graph_dtype(code).name
            except ModelError:
                continue
            if computed != expected:
                yield (
                    f'node "{printable(node_label(node))}" computes "{printable(name)}" as '
                    f"{computed}, declared is {type_name(code)}; {computed} is taken, export the "
                    "model again if that is wrong"
                )
