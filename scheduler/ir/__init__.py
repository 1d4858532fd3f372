"""The graph of the compiler: nodes, operations, types, indices, their meaning in numpy."""
