"""Random programs against what they mean: `python -m tests.fuzz`, for hours or for a moment."""
