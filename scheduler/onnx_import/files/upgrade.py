"""The conversion of models of opset 1 to 6, written before 2018, to a newer opset, by onnx."""

from __future__ import annotations

import onnx
from onnx import helper, version_converter

from scheduler.errors import ModelError
from scheduler.onnx_import.text import one_line

# The oldest that translators know: the first with numpy's broadcasting, without `broadcast=1`.
OLDEST_OPSET = 7
# What old models become: an opset that the converter reaches from all of them.
TARGET_OPSET = 13


def upgraded(model: onnx.ModelProto, opset: int, name: str) -> tuple[onnx.ModelProto, str]:
    """Return a checked model, which is changed, in an opset that translators know, and a note.

    Raises:
        ModelError: onnx cannot convert it.
    """
    listed = {value.name for value in model.graph.input}
    unlisted = [t for t in model.graph.initializer if t.name not in listed]
    # The converter knows initializers among the inputs only, as files of that time have them.
    model.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in unlisted
    )
    try:
        made = version_converter.convert_version(model, TARGET_OPSET)
    except Exception as error:  # what the converter raises is documented nowhere
        reason = one_line(error).rpartition("failed: ")[2]  # after a place in its source
        raise ModelError(
            f"{name}: opset {opset} is older than {OLDEST_OPSET}, and onnx cannot convert it: "
            f"{reason}; export it again with a newer opset_version"
        ) from error
    kept = [v for v in made.graph.input if v.name not in {t.name for t in unlisted}]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    del made.metadata_props[:]
    made.metadata_props.extend(model.metadata_props)
    return made, f"converted from opset {opset} to {TARGET_OPSET} by onnx"
