"""The parts of ``modeld doctor``, which check a machine and its state for the daemon."""
