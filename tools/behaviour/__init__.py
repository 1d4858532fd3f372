"""Measures the effect of a model's outputs on the drive, in metres and seconds, with gates."""
