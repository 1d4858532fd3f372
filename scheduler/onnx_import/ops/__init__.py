"""Translators of ONNX operators to Tensors, one file per theme.

A translator takes the `NodeContext` of one node and returns its outputs. Every translator raises
ModelError for shapes that do not fit, unknown attribute values, and sizes that depend on run-time
data; the importer adds the model and the node to the message. The docstrings do not repeat this.
"""
