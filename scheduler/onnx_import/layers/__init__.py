"""Translators of ONNX operators that are layers of networks, one file for each theme."""
