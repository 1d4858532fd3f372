"""How each field of the daemon's messages is kept in a reference: the comparison's own table."""

from __future__ import annotations

from tools.regress.packing import FieldRule
from tools.regress.quantize import Scale

# Times of this machine; they are judged by the timing gate.
_MEASURED = frozenset({"modelExecutionTime", "gpuExecutionTime"})
_DEFAULT = FieldRule(Scale(1e-3, 1e-2))
_LEFT_OUT = FieldRule(Scale(1e-3, 1e-2), measured=True)


def rule_of(service: str, field: str) -> FieldRule:
    """Return how a field is kept.

    Args:
        service: e.g. ``modelV2``.
        field: path below it, lists as ``[]``.
    """
    del service
    return _LEFT_OUT if field in _MEASURED else _DEFAULT
