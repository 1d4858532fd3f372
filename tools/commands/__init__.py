"""The sub-commands of ``modeld``, one module each."""
