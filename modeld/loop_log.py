"""What the loop logs of frames that went wrong, at most once in a hundred."""

import logging
from dataclasses import dataclass, field
from typing import Final

from modeld.drop_filter import DropStatus
from modeld.errors import CameraSizeError
from modeld.frame_sync import FramePair
from modeld.throttle import Throttle

# Records of the loop keep the name that they have had.
logger: Final = logging.getLogger("modeld.daemon")


@dataclass(slots=True)
class LoopLog:
    """Counts what goes wrong, each kind by itself."""

    _refused: Throttle = field(default_factory=Throttle)
    _dropped: Throttle = field(default_factory=Throttle)
    _not_finite: Throttle = field(default_factory=Throttle)
    _overwritten: Throttle = field(default_factory=Throttle)

    def refused(self, error: CameraSizeError) -> None:
        """Log a pair of frames that the model cannot take."""
        if self._refused.hit():
            logger.error(
                "frames not used, waiting for others: %s (%d times so far)",
                error,
                self._refused.total,
            )

    def dropped(self, drop: DropStatus, frames: FramePair, *, skipped: bool) -> None:
        """Log missing frames before a pair, and whether the model is not run with it."""
        if self._dropped.hit():
            logger.error(
                "frames dropped: %d, before frame %d%s (%d times so far)",
                drop.dropped,
                frames.main.frame_id,
                "; model not run" if skipped else "",
                self._dropped.total,
            )

    def not_finite(self, frames: FramePair) -> None:
        """Log a run whose outputs cannot be used."""
        if self._not_finite.hit():
            logger.error(
                "model outputs of frame %d are not finite: state reset, messages marked invalid "
                "(%d times so far)",
                frames.main.frame_id,
                self._not_finite.total,
            )

    def overwritten(self, frames: FramePair) -> None:
        """Log a run that the camera process overtook."""
        if self._overwritten.hit():
            logger.error(
                "frame %d or %d was overwritten while it was used: messages marked invalid "
                "while the model sees it (%d times so far)",
                frames.main.frame_id,
                frames.extra.frame_id,
                self._overwritten.total,
            )
