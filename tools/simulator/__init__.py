"""The simulator: a world of roads and cars, rendered drives, closed-loop driving, and training.

Only commands import this package, so an installation may omit the folder (docs/deploy.md).
"""
