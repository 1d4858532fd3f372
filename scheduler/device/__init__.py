"""Rows of devices, and the choice of one."""
