"""Measured search: which loops run faster on this device than those of the heuristic."""
