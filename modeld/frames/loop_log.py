"""The loop's log of faults in frames and runs."""

import time
from dataclasses import dataclass
from typing import Final

from cereal.frames import Frame
from modeld.errors import ModeldError
from modeld.frames.frame_judge import DropStatus
from modeld.state.episodes import NS_PER_S, Episodes, Kind
from modeld.state.loop_state import REFUSED, Fault

REFUSED_FRAMES: Final = Kind(
    "frames refused", over="frames can be used again", unit="frames", fault=Fault.FRAME_REFUSED
)
# Counted by the loop: several may be missing at once.
DROPPED: Final = Kind("frames dropped", quiet_ns=2 * NS_PER_S)
NOT_FINITE: Final = Kind("not finite", unit="runs", fault=Fault.NOT_FINITE, quiet_ns=2 * NS_PER_S)
OVERWRITTEN: Final = Kind(
    "frames overwritten", unit="frames", fault=Fault.FRAME_OVERWRITTEN, quiet_ns=2 * NS_PER_S
)


@dataclass(slots=True)
class LoopLog:
    """Logs the loop's faults, each kind by itself."""

    episodes: Episodes

    def refused(self, error: ModeldError) -> None:
        """Log frames that the model, or the configuration, cannot take."""
        self.episodes.state.refused = (time.monotonic_ns(), str(error))
        self.episodes.happen(REFUSED_FRAMES, f"{REFUSED}, waiting for others: {error}")

    def no_fallback(self, problem: str) -> None:
        """Log why there is no fallback model any more, and note it for the health message."""
        text = f"fallback model not usable, going on without one: {problem}"
        self.episodes.logger.error("%s", text)
        self.episodes.state.problems += (text,)

    def dropped(self, drop: DropStatus, frame_id: int, *, skipped: bool) -> None:
        """Count and log missing frames before one, and whether the model is not run with it."""
        self.episodes.state.dropped += drop.dropped
        self.episodes.state.count(Fault.FRAMES_DROPPED, drop.dropped)
        self.episodes.happen(
            DROPPED,
            f"frames dropped: {drop.dropped}, before frame {frame_id}"
            f"{'; model not run' if skipped else ''}",
        )

    def not_finite(self, frame_id: int, then: str) -> None:
        """Log a run whose outputs are not finite, and the reaction `then`."""
        self.episodes.happen(
            NOT_FINITE, f"model outputs of frame {frame_id} are not finite: {then}"
        )

    def overwritten(self, main: Frame, extra: Frame | None = None) -> None:
        """Log a run that the camera process overtook."""
        which = f"{main.frame_id}" if extra is None else f"{main.frame_id} or {extra.frame_id}"
        self.episodes.happen(
            OVERWRITTEN,
            f"frame {which} was overwritten while it was used: messages marked invalid while the "
            "model sees it",
        )
