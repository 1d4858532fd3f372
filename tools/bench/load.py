"""Loads an artifact in a process of its own and prints how long that took."""

import sys

from runtime import load_program

if __name__ == "__main__":
    with load_program(sys.argv[1], sys.argv[2] or None) as program:
        print(program.stats.load_ms)
