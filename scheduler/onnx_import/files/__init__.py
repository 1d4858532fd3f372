"""Reads ONNX files and checks them; later code trusts the result."""
