"""An Instance is the coordinate of the register tile at which a value is computed."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.ir.index import Atom, Ix


@dataclass(frozen=True, slots=True)
class Instance:
    """One coordinate of the register tile.

    Attributes:
        mapping: value of each range, and of each run-time index met so far.
        coordinates: (outer step, unroll coordinate) of each range, for packed weights.
    """

    mapping: dict[Atom, Ix]
    coordinates: dict[Atom, tuple[Ix, Ix]]

    def extended(self, other: Instance) -> Instance:
        """Return this instance with the ranges of another."""
        return Instance(self.mapping | other.mapping, self.coordinates | other.coordinates)
