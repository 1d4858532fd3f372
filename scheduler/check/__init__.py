"""Checks that a compiled model computes the same results as its ONNX model."""
