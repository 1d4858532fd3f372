"""Tests of the suite that should pass and do not: name -> reason. One that passes must leave.

Names are patterns; every one must match a test.
"""

from __future__ import annotations

from collections.abc import Mapping

KNOWN_FAILURES: Mapping[str, str] = {}
