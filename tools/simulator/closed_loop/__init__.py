"""The closed loop: a simulated car follows the daemon's commands, and its drive is measured."""
