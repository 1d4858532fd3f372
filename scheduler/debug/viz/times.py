"""Times of launches that were measured somewhere, as the page shows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaunchTimes:
    """How long each launch of an entry takes.

    Attributes:
        milliseconds: by number of the launch.
        where: what they were measured on, plain text.
    """

    milliseconds: tuple[float, ...]
    where: str

    @property
    def total(self) -> float:
        """The sum over all launches, in milliseconds."""
        return sum(self.milliseconds)

    def share(self, launch: int) -> float:
        """Return the part that a launch has of the sum, 0..1."""
        return self.milliseconds[launch] / self.total if self.total > 0 else 0.0

    def text(self, launch: int) -> str:
        """Return the time of a launch for people."""
        return time_text(self.milliseconds[launch])


def time_text(milliseconds: float) -> str:
    """Return a time in ms, or in us where it is below a tenth of that."""
    return f"{milliseconds:.2f} ms" if milliseconds >= 0.1 else f"{1e3 * milliseconds:.1f} us"
