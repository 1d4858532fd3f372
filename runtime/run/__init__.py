"""A loaded program and its runs: memory, entry points, launches, self-test."""
