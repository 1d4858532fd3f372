"""State that the loop thread writes and other threads read."""
