"""Loads models from artifacts, runs them and replaces them, for the daemon's loop."""
