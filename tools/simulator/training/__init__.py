"""Trains the driving model of the project on painted pictures of the simulated world."""
