"""The suite under conditions that are not those of this machine: `python -m tests.conditions`."""
