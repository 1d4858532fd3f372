"""Chooses the loops of each kernel and how its operands lie in memory."""
