"""The verdict on behaviour: rows, gates, and what gates may stand in for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from tools.behaviour.difference import Row, Sides, difference, figures_of
from tools.behaviour.gates import Gates, GateVerdict, judge
from tools.behaviour.quantities import QUANTITIES

# Facts of the frame and its messages: no precision and no target changes them, so that no gate
# stands in for them. Fields below the service, and those of the Event itself.
FRAME_FIELDS: Final = frozenset(
    {
        ".valid",
        "frameId",
        "frameIdExtra",
        "frameAge",
        "frameDropPerc",
        "timestampEof",
        "big",
    }
)
# Kinds of findings that gates stand in for; a frame or a number that is missing is none of them.
NUMERIC_KINDS: Final = ("value", "shift")


@dataclass(frozen=True, slots=True)
class BehaviourVerdict:
    """What a change does to the drive.

    Attributes:
        rows: one for each quantity; none where nothing was compared.
        gates: what became of each gate.
        decide: gates stand in the place of tolerances.
    """

    rows: tuple[Row, ...] = ()
    gates: tuple[GateVerdict, ...] = ()
    decide: bool = False

    @property
    def holds(self) -> bool:
        """Whether all gates hold."""
        return all(gate.holds for gate in self.gates)

    @property
    def differing(self) -> tuple[Row, ...]:
        """The quantities that are not the same on both sides."""
        return tuple(row for row in self.rows if row.differs)

    def stands_in_for(self, kind: str, field: str) -> bool:
        """Whether gates decide in the place of a finding.

        Args:
            kind: of the finding, see `tools.compare.findings.FindingKind`.
            field: path below the service.
        """
        return self.decide and kind in NUMERIC_KINDS and field not in FRAME_FIELDS

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "quantities": [_row_json(row) for row in self.rows],
            "gates": [
                {
                    "gate": one.gate,
                    "name": one.name,
                    "value": one.value,
                    "holds": one.holds,
                    "note": one.note or None,
                }
                for one in self.gates
            ],
            "gates_decide": self.decide,
            "gates_hold": self.holds,
        }


def judge_behaviour(sides: Sides, gates: Gates, *, uncalibrated: bool = False) -> BehaviourVerdict:
    """Compare two behaviours and judge the difference.

    Args:
        sides: both, and the truth where it is known.
        gates: what has to hold.
        uncalibrated: also compare frames before the first valid one.
    """
    rows = difference(*sides, uncalibrated=uncalibrated)
    return BehaviourVerdict(rows, judge(figures_of(rows), gates.all), gates.decide)


_MEANINGS: Final = {quantity.name: quantity.meaning for quantity in QUANTITIES}


def _row_json(row: Row) -> dict[str, Any]:
    return {**asdict(row), "meaning": _MEANINGS[row.quantity]}
