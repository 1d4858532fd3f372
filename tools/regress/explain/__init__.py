"""Explains why the outputs or the time of a drive changed: the first frame, the first kernel."""
