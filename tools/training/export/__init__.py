"""Trained networks as ONNX files, and their model card."""
