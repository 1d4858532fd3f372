"""Turns a graph of tensors into an ordered list of kernels: storage, fusion, order, memory."""
