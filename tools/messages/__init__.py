"""Reads and writes the messages of a drive: as plain values, as arrays, and as raw bytes."""
