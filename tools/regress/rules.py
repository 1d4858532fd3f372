"""Rules of how each field is kept in a reference: the comparison's own table."""

from __future__ import annotations

from functools import cache
from typing import Final

from tools.compare.tolerances import Tolerances, read_tolerances
from tools.regress.packing import FieldRule
from tools.regress.quantize import Scale

# Not compared, because harnesses stamp messages in their own ways; ours stamps them in one, and
# a log needs its stamps.
_KEPT: Final = ".logMonoTime"


@cache
def rule_of(service: str, field: str) -> FieldRule:
    """Return how a field is kept: what the package's table ignores is not.

    A user's own tolerances widen or narrow what is compared, not what is kept.

    Args:
        service: e.g. ``modelV2``.
        field: path below it, lists as ``[]``.
    """
    tolerance = _table().of(service, field)
    measured = tolerance.ignore and field != _KEPT
    return FieldRule(Scale(tolerance.absolute, tolerance.relative), measured)


@cache
def _table() -> Tolerances:
    return read_tolerances()
