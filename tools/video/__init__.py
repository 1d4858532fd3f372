"""Reads video files as camera frames."""
