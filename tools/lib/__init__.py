"""Helpers of the command line tools; nothing outside ``tools`` imports them."""
