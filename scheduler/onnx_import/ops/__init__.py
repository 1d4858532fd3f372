"""Translators: what each ONNX operator means, as Tensors; one file for each theme."""
