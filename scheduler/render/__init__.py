"""Kernels as OpenCL C."""
