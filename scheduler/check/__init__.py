"""Checks of a compiled model against what its ONNX file says."""
