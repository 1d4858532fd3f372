"""The closed loop: a simulated car follows what the daemon says, and how well it drives is measured in metres."""
