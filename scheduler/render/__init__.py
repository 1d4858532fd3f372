"""Renders scheduled kernels as OpenCL C."""
