"""Model-output regression (``modeld regress``): references, gates, timing and explanations."""
