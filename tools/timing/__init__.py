"""Measures the times of programs and their limits: blocks of runs, traces, and the roofline."""
