"""Counting until the histories of a model that has just started are full (see ADR 0020)."""

from dataclasses import dataclass


@dataclass(slots=True)
class WarmUp:
    """Tells once when the model has seen enough frames.

    Attributes:
        needed: Runs until no history holds zeros of the start any more.
        runs: Runs since the start, not counted further than `needed`.
    """

    needed: int
    runs: int = 0

    def ran(self) -> bool:
        """Count a run; return whether it was the one that filled the histories."""
        if self.runs >= self.needed:
            return False
        self.runs += 1
        return self.runs == self.needed

    def restart(self) -> None:
        """Begin anew, as the histories were reset."""
        self.runs = 0
