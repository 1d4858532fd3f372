"""What a machine has for the daemon, and how it does: parts of ``modeld doctor``."""
