"""Compares event logs field by field, aligned by frame id."""
