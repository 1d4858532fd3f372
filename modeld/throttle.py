"""Rate limiting for log records of the 20 Hz loop, by count so that it needs no clock."""

from dataclasses import dataclass


@dataclass(slots=True)
class Throttle:
    """Lets the first of every ``period`` occurrences through.

    Attributes:
        period: Occurrences per log record; 100 is one record every 5 s at 20 Hz.
        total: Occurrences so far; put it into the record.
    """

    period: int = 100
    total: int = 0

    def hit(self) -> bool:
        """Count one occurrence and say whether it should be logged."""
        self.total += 1
        return (self.total - 1) % self.period == 0
