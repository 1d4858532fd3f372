"""Finds why a drive or a time changed: the first frame, the first kernel."""
