"""Whether what a device gave is what may come of a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fuzz.rounding import Known

Array = NDArray[Any]


@dataclass
class Counts:
    """Elements that were compared: bit for bit, within a bound; and those that are undecided."""

    exact: int = 0
    bounded: int = 0
    undecided: int = 0

    def add(self, other: Counts) -> None:
        """Add others."""
        self.exact += other.exact
        self.bounded += other.bounded
        self.undecided += other.undecided


def difference(
    got: Array, want: Known, counts: Counts, range_of: tuple[int, int] | None = None
) -> str:
    """Return what is wrong with a result, "" if nothing is.

    Args:
        got: what the device gave.
        want: what is known of it.
        counts: gets the elements that were compared.
        range_of: smallest and largest value allowed where the value is not known.
    """
    value, error = want.value, want.error
    if (got.shape, got.dtype) != (value.shape, value.dtype):
        return f"{got.dtype}{list(got.shape)}, expected {value.dtype}{list(value.shape)}"
    undecided = np.isinf(error)
    with np.errstate(all="ignore"):
        if value.dtype.kind == "f":
            away = np.abs(got.astype(np.float64) - value.astype(np.float64))
            same = (got == value) | (np.isnan(got) & np.isnan(value))
            right = same | (away <= error)
        else:
            away = np.abs(got.astype(np.float64) - value.astype(np.float64))
            right = np.asarray((got == value) | ((error > 0) & (away <= error)))
    counts.exact += int((error == 0).sum())
    counts.undecided += int(undecided.sum())
    counts.bounded += int(((error > 0) & ~undecided).sum())
    right = right | undecided
    if range_of is not None:
        right = right & (got >= range_of[0]) & (got <= range_of[1])
    if right.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~right)[0])
    limit = "exactly" if error[at] == 0 else f"within {error[at]:.3g}"
    among = f", allowed {range_of[0]} to {range_of[1]}" if range_of is not None else ""
    return (
        f"{int((~right).sum())} of {right.size} elements; first at {list(at)}: "
        f"got {got[at]!r}, expected {value[at]!r} {limit}{among}"
    )
