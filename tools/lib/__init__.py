"""Helpers of the command line tools, used only in ``tools``."""
