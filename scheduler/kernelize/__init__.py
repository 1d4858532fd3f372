"""From a graph of tensors to a list of kernels: what is stored, what is fused, when and where."""
