"""Graph passes, which run before kernels are built; each file sketches them as before -> after."""
