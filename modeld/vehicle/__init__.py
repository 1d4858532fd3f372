"""Reads the vehicle's state from messages and parameters, checks it, and computes calibration."""
