"""Trains the project's driving model on rendered pictures of the simulated world."""
