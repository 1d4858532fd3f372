"""Measures the effect of a model's answers on the drive in metres and seconds, with gates."""
