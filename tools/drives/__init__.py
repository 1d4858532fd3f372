"""Recorded drives of every kind behind one interface: messages and frames, moment by moment."""
