"""The graph passes before kernelizing: a file for each subject, with before -> after sketches."""
