"""Timing of programs: runs, launches and blocks, compared with peers and with device limits."""
