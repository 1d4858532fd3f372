"""Passes that compute with whole numbers of eight bits."""
