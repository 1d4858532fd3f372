"""Describes artifacts, models, logs and schedules, as ``modeld inspect`` prints them."""
