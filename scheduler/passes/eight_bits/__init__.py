"""Passes for quantized models: 8-bit integers in moves, lookups and products."""
