"""Converts schedules to the plain data of an artifact."""
