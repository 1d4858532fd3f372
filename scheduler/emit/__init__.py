"""Schedules as the plain data of an artifact."""
