"""Counting frames that the daemon never saw, and the smoothed share it reports.

Constants: openpilot modeld, 2023-2025 (unchanged).
"""

from dataclasses import dataclass
from typing import Final

from modeld.constants import DT_MODEL_S

FILTER_TIME_CONSTANT_S: Final = 10.0
FILTER_ALPHA: Final = DT_MODEL_S / (FILTER_TIME_CONSTANT_S + DT_MODEL_S)
# One long gap must not keep the filter high for minutes.
MAX_COUNTED_DROPS: Final = 10
# Start-up drops frames while buffers fill; they are not the lag that consumers look for.
WARM_UP_FRAMES: Final = 10


@dataclass(frozen=True, slots=True)
class DropStatus:
    """Dropped frames at one iteration.

    Attributes:
        dropped: Frame ids missing between the previous frame and this one.
        percent: Smoothed share of dropped frames, 0..100.
    """

    dropped: int
    percent: float


@dataclass(slots=True)
class DropFilter:
    """First-order filter over the number of dropped frames per iteration.

    Attributes:
        filtered: Smoothed drops per iteration.
        last_frame_id: Id of the previous main frame; None before the first (see ADR 0020).
        iterations: Frames seen so far.
    """

    filtered: float = 0.0
    last_frame_id: int | None = None
    iterations: int = 0

    def update(self, frame_id: int) -> DropStatus:
        """Take the id of a new main frame.

        A camera that restarts and counts from zero again has dropped nothing.
        """
        last = frame_id - 1 if self.last_frame_id is None else self.last_frame_id
        dropped = max(0, frame_id - last - 1)
        self.last_frame_id = frame_id
        self.filtered += FILTER_ALPHA * (min(dropped, MAX_COUNTED_DROPS) - self.filtered)
        if self.iterations < WARM_UP_FRAMES:
            self.filtered = 0.0
        self.iterations += 1
        return DropStatus(dropped, 100.0 * self.filtered / (1.0 + self.filtered))
