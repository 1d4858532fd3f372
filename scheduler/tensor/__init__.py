"""Tensor is the lazy front end; the modules here build graphs with it and realize them."""
