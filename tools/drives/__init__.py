"""Recorded drives of every kind behind one interface: messages and frames, one moment per frame."""
