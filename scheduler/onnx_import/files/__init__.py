"""The reader of ONNX files: bytes that we did not write are checked once, here."""
