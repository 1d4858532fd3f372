"""Translators of ONNX operators to Tensors, one file for each theme.

A translator takes the `NodeContext` of one node and returns its outputs. All raise ModelError for
what they refuse (shapes that do not fit, unknown values of attributes, sizes that depend on
run-time data); the importer adds the file and the node. Their docstrings do not repeat that.
"""
