"""From a kernel body to OpenCL C: placement in memory, choice of loops, packing of weights, rendering."""
