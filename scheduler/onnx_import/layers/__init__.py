"""Translators of ONNX operators that are network layers, one file per theme."""
