"""Logs faults of camera frames.

`SyncLog` logs faults in pairing two cameras; `LoopLog` logs faults in using the frames. Each
constant of type `Kind` describes one kind of fault: its name, its counter and the line that ends
it.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cereal.frames import Frame
from modeld.errors import ModeldError
from modeld.frames.frame_judge import DropStatus
from modeld.state.episodes import NS_PER_S, Episodes, Kind
from modeld.state.loop_state import NS_PER_MS, REFUSED, Fault

# Maximum number of frames to read while pairing: 3 s at 20 Hz, far more than any frame ring holds.
MAX_RECEIVES: Final = 60
# No camera exceeds 1000 frames/s, so stamps that advance less per frame are not nanoseconds.
MIN_FRAME_PERIOD_NS: Final = 1_000_000


# --- Faults in pairing: a camera sends no frames, or frames without a partner -----------------

# It also ends when the camera is declared lost, so there is no line for its end.
NO_EXTRA_FRAME: Final = Kind(
    "no extra frame", unit="timeouts", fault=Fault.NO_FRAME, level=logging.WARNING
)
EXTRA_LOST: Final = Kind("extra camera lost", over="extra camera resumed", unit="frames")
OUT_OF_SYNC: Final = Kind(
    "out of sync", over="frames of both cameras start together again", unit="pairs"
)
# One run of unpaired frames takes three seconds.
UNPAIRED: Final = Kind("unpaired", unit="runs of frames", quiet_ns=10 * NS_PER_S)
NO_NANOSECONDS: Final = Kind(
    "no nanoseconds", unit="runs of frames", fault=Fault.FRAME_STAMPS, quiet_ns=10 * NS_PER_S
)
SAME_START: Final = Kind(
    "same start", over="frame starts advance again", unit="frames", fault=Fault.FRAME_STAMPS
)
TIME_BACK: Final = Kind("time back", level=logging.INFO, quiet_ns=10 * NS_PER_S)


def no_frame(camera: str) -> Kind:
    """Return the kind of fault for a silent camera that paces the loop."""
    return Kind(
        f"no {camera} frame",
        over=f"{camera} camera frames resumed",
        unit="timeouts",
        fault=Fault.NO_FRAME,
        level=logging.WARNING,
    )


@dataclass(slots=True)
class UnpairedRun:
    """Consecutive frames of one camera without a partner, over any number of calls."""

    first: Frame | None = None
    count: int = 0

    def add(self, frame: Frame) -> bool:
        """Count a frame; return True when there are MAX_RECEIVES or more."""
        self.first = self.first or frame
        self.count += 1
        return self.count >= MAX_RECEIVES

    def clear(self) -> None:
        """Start a new run."""
        self.first, self.count = None, 0


@dataclass(slots=True)
class SyncLog:
    """Logs the faults in pairing, each kind separately."""

    episodes: Episodes  # receives faults
    main_name: str = "road"  # name of the camera that paces the loop, "road" or "wide"
    # Returns whether the loop was asked to end; missing frames are then not logged.
    is_ending: Callable[[], bool] = lambda: False
    _lost_text: str = ""
    _no_main: Kind = field(init=False)

    def __post_init__(self) -> None:
        """Create the kind of fault of the main camera."""
        self._no_main = no_frame(self.main_name)

    def no_main_frame(self, wait_ms: int) -> None:
        """Report that no main frame arrived within the wait."""
        self._no_frame(self._no_main, self.main_name, wait_ms)

    def main_frame(self) -> None:
        """Report that a main frame arrived."""
        self.episodes.end(self._no_main)

    def no_extra_frame(self, wait_ms: int) -> None:
        """Report that no extra frame arrived within the wait."""
        self._no_frame(NO_EXTRA_FRAME, "wide", wait_ms)

    def out_of_sync(self, main: Frame, extra: Frame, gap_ns: int) -> None:
        """Report that the frames of a pair start too far apart."""
        self.episodes.happen(
            OUT_OF_SYNC,
            f"frames out of sync: main frame {main.frame_id} and extra frame {extra.frame_id} "
            f"start {gap_ns / 1e6:.1f} ms apart",
        )

    def same_start(self, frame: Frame) -> None:
        """Report that a main frame has its predecessor's stamp and is not used."""
        self.episodes.happen(
            SAME_START,
            f"{self.main_name} camera: frame {frame.frame_id} has the start of the one before, "
            f"{frame.timestamp_sof_ns} ns: not used, waiting for others; fix the camera process",
        )

    def time_back(self, before: Frame, frame: Frame) -> None:
        """Report that the main camera's time goes back."""
        self.episodes.happen(
            TIME_BACK,
            f"{self.main_name} camera: time goes back from {before.timestamp_sof_ns} to "
            f"{frame.timestamp_sof_ns} ns at frame {frame.frame_id}; pairing restarts",
        )

    def lost(self, main: Frame, missed_ns: int, extra_sof_ns: int | None) -> None:
        """Record that the extra camera is lost from this frame on."""
        self.episodes.state.count(Fault.CAMERA_LOST)
        self._lost_text = (
            f"extra camera lost: none of its frames belongs to main frame {main.frame_id} within "
            f"{missed_ns // NS_PER_MS} ms (starts of frame {main.timestamp_sof_ns} and "
            f"{extra_sof_ns} ns); going on with the main camera alone, messages marked invalid; "
            "if it sends, check its rate and that both cameras use one clock"
        )

    def missing(self) -> None:
        """Record that the extra camera has been missing since the start."""
        self.episodes.state.count(Fault.CAMERA_LOST)
        self._lost_text = (
            "extra camera lost: it was missing at the start, and this device has one; going on "
            "with the main camera alone, messages marked invalid, and looking for it once a "
            "second; start its camera process, or configure [camera.road] alone for a device "
            "without one"
        )

    def without_extra(self) -> None:
        """Report that a main frame is used without an extra frame."""
        self.episodes.happen(EXTRA_LOST, self._lost_text)

    def extra_back(self) -> None:
        """Report that the extra camera is back."""
        self.episodes.end(EXTRA_LOST)

    def unpaired(
        self, run: UnpairedRun, last: Frame, other_sof_ns: int | None, *, of_main: bool
    ) -> bool:
        """Log why a run of frames has no partners, and end the run; see ADR 0020.

        Returns False if the stamps of the run are not nanoseconds or do not advance.
        """
        camera = self.main_name if of_main else "wide"
        first = run.first or last
        run.clear()
        frames = last.frame_id - first.frame_id
        elapsed_ns = last.timestamp_sof_ns - first.timestamp_sof_ns
        if elapsed_ns == 0:
            return False
        # Consecutive frames closer than the shortest period mean another unit, such as
        # microseconds.
        if frames > 0 and 0 <= elapsed_ns < frames * MIN_FRAME_PERIOD_NS:
            self.episodes.happen(
                NO_NANOSECONDS,
                f"{camera} camera: frames {first.frame_id}..{last.frame_id}: expected start-of-"
                f"frame stamps in nanoseconds, got {first.timestamp_sof_ns}.."
                f"{last.timestamp_sof_ns}; waiting for others; let the camera source multiply its "
                "stamps",
            )
            return False
        self.episodes.happen(
            UNPAIRED,
            f"{camera} camera: {MAX_RECEIVES} frames up to {last.frame_id} (start of frame "
            f"{last.timestamp_sof_ns} ns) pair with none of the other camera ({other_sof_ns} ns); "
            "check that both cameras use one clock",
        )
        return True

    def _no_frame(self, kind: Kind, camera: str, wait_ms: int) -> None:
        if self.is_ending():
            return
        text = f"no frame from the {camera} camera within {wait_ms} ms"
        self.episodes.happen(kind, text, waited_ns=wait_ms * NS_PER_MS)


# --- Faults in use: refused, dropped or overwritten frames, and non-finite outputs ------------

REFUSED_FRAMES: Final = Kind(
    "frames refused", over="frames can be used again", unit="frames", fault=Fault.FRAME_REFUSED
)
# It has no fault of its own: `LoopLog.dropped` counts, as several frames can be missing together.
DROPPED: Final = Kind("frames dropped", quiet_ns=2 * NS_PER_S)
NOT_FINITE: Final = Kind("not finite", unit="runs", fault=Fault.NOT_FINITE, quiet_ns=2 * NS_PER_S)
OVERWRITTEN: Final = Kind(
    "frames overwritten", unit="frames", fault=Fault.FRAME_OVERWRITTEN, quiet_ns=2 * NS_PER_S
)


@dataclass(slots=True)
class LoopLog:
    """Logs the faults of a loop's frames and model runs, each kind separately."""

    episodes: Episodes  # receives faults

    def refused(self, error: ModeldError) -> None:
        """Log frames that the model or the configuration cannot use."""
        self.episodes.state.refused = (time.monotonic_ns(), str(error))
        self.episodes.happen(REFUSED_FRAMES, f"{REFUSED}, waiting for others: {error}")

    def no_fallback(self, problem: str) -> None:
        """Log why the fallback model was discarded; add it to the health message's problems."""
        text = f"fallback model not usable, continuing without one: {problem}"
        self.episodes.logger.error("%s", text)
        self.episodes.state.problems += (text,)

    def dropped(self, drop: DropStatus, frame_id: int, *, skipped: bool) -> None:
        """Count and log frames dropped before `frame_id`; `skipped` if the model is not run."""
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
        """Log a run during which the camera process overwrote a frame."""
        which = f"{main.frame_id}" if extra is None else f"{main.frame_id} or {extra.frame_id}"
        self.episodes.happen(
            OVERWRITTEN,
            f"frame {which} was overwritten while it was used: messages marked invalid while the "
            "model sees it",
        )
