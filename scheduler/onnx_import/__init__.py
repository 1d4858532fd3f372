"""The ONNX front end: translates ONNX files into Tensors. It needs the `compile` extra (onnx)."""

from scheduler.onnx_import.files.load import OnnxModel, from_proto, load_model
from scheduler.onnx_import.importer import ImportedModel, import_model
from scheduler.onnx_import.metadata import ModelMetadata, parse_metadata
from scheduler.onnx_import.support import check_supported, unsupported_nodes
from scheduler.onnx_import.table import TRANSLATORS

__all__ = [
    "TRANSLATORS",
    "ImportedModel",
    "ModelMetadata",
    "OnnxModel",
    "check_supported",
    "from_proto",
    "import_model",
    "load_model",
    "parse_metadata",
    "unsupported_nodes",
]
