"""The training data: rendered samples for vision, and simulated drives for the policy."""
