"""Drives played in real time: on the bus, for a daemon of ours or of somebody else."""
