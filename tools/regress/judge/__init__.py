"""References, and the judgement of a drive by them."""
