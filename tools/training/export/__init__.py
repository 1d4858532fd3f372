"""Trained networks as ONNX files, and the card beside them."""
