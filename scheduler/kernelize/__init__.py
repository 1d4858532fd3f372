"""Turn a graph of tensors into a list of kernels: storage, fusion, order, memory."""
