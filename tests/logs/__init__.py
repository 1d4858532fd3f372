"""Logs that are damaged, cut off or killed: `python -m tests.logs`; a moment of it in the suite."""
