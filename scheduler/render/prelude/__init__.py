"""Vectorized elementwise functions in OpenCL C, which precede the kernels of a program."""
