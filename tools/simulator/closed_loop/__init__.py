"""The closed loop: a simulated car follows the daemon's commands, measured in metres."""
