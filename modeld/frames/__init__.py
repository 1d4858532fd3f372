"""Receives camera frames, pairs them, checks them and passes them to the model."""
