"""The simulator: roads and cars, drives rendered of them, driving among them, and training on it.

Only commands import it, so an installation may leave the folder out (docs/deploy.md).
"""
