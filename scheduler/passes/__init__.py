"""The graph passes before kernelizing; each file is one pass with a before -> after sketch."""
