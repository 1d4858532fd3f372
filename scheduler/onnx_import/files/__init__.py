"""Reading ONNX files: bytes that we did not write, checked once, here."""
