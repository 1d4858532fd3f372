"""From a graph of tensors to a list of kernels: what is stored, what is fused, in which order, where in memory."""
