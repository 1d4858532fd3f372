"""Loaded programs: device memory, entry points, launches and the self-test."""
