"""Decisions on the loops of a kernel: layout, vectors, tiles, order."""
