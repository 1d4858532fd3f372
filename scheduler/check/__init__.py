"""Does a compiled model compute what its ONNX file says?"""
