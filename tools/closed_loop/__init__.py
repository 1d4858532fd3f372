"""The closed loop: a simulated car follows what the daemon says, measured in metres."""
