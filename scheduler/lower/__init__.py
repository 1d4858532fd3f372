"""From a kernel body to OpenCL C: place in memory, choose loops, pack weights, render."""
