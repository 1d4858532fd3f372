"""Model-output regression: references, gates on outputs and timing, explanations."""
