"""Raw output vectors parsed into distributions, and the messages filled from them."""
