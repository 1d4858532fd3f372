"""What networks learn from: painted moments and simulated drives."""
