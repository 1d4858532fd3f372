"""Caches of compiled entries."""
