"""Artifacts, models, logs and schedules described, as ``modeld inspect`` prints them."""
