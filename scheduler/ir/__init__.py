"""The graph of the compiler: nodes, operations, types, indices, and their meaning in numpy."""
