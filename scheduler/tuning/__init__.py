"""Tuning: a measured search for loops that are faster on a device than the heuristic's loops."""
