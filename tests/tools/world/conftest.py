"""Tests here compare with golden text."""

from tests.support.golden import golden

__all__ = ["golden"]
