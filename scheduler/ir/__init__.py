"""The compiler's graph: nodes, operations, types, indices, and their meaning in numpy."""
