"""Tensor, the lazy front end, and how tensors are realized."""
