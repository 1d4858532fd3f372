"""What is decided about the loops of a kernel: layout, vectors, tiles, order."""
