"""Elementwise functions in OpenCL C, at vector speed."""
