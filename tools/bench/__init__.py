"""The modes of ``modeld bench``, and the processes that they start."""
