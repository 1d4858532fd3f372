"""State of the loop: its progress, its lasting faults, and the memory of the drive."""
