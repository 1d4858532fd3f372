"""Sub-commands that play, render, drive, compare or judge drives."""
