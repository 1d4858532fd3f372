"""The progress of a loop and the times of its stages.

Only the loop's thread writes it; other threads read it. Each field is one object that is replaced
as a whole, so a reader sees the old or the new value and needs no lock. Stamps are from
``time.monotonic_ns``, whichever clock stamps the messages; 0 means never.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from modeld.errors import RunAbandonedError

# --- Histograms of the time that a frame spends in each stage of the loop ---------------------

# Stages in order. Each lasts from the previous mark to its own.
STAGES: Final = ("wait", "inputs", "model", "publish")
# Upper bounds of the buckets in ms. They are dense around the 50 ms of a frame; a last bucket has
# no bound.
BOUNDS_MS: Final = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
                    50.0, 75.0, 100.0, 150.0, 250.0, 500.0, 1000.0)  # fmt: skip
NS_PER_MS: Final = 1_000_000


@dataclass(slots=True)
class Histogram:
    """A histogram of durations since the start: one count per bucket."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    total_ns: int = 0

    def add(self, duration_ns: int) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_MS, duration_ns / NS_PER_MS)] += 1
        self.total_ns += duration_ns


@dataclass(slots=True)
class StageTimes:
    """One histogram for each of `STAGES`, filled by marks that the loop sets."""

    histograms: dict[str, Histogram] = field(
        default_factory=lambda: {stage: Histogram() for stage in STAGES}
    )
    _last_ns: int = 0

    def begin(self, now_ns: int) -> None:
        """Begin a frame and its first stage."""
        self._last_ns = now_ns

    def mark(self, stage: str, now_ns: int) -> None:
        """End a stage, which began at the previous mark."""
        self.histograms[stage].add(now_ns - self._last_ns)
        self._last_ns = now_ns


# --- The loop's progress ----------------------------------------------------------------------

# A refusal expires after this time without another one, because no frames arrive.
_LATELY_NS: Final = 1_000_000_000
# Prefix of a refusal in the log, the status line and the health message.
REFUSED: Final = "frames not used"


class Phase(StrEnum):
    """The activity of a loop."""

    STARTING = "starting"
    WAITING_CAMERA = "waiting for cameras"
    WAITING_CAR = "waiting for the car"
    RUNNING = "running"


class Fault(StrEnum):
    """Kinds of counted faults; names as in docs/faults.md, the health message and metrics."""

    DEVICE_ERROR = "deviceError"
    RUN_TIMEOUT = "runTimeout"
    NOT_FINITE = "notFinite"
    FRAME_OVERWRITTEN = "frameOverwritten"
    FRAME_REFUSED = "frameRefused"
    FRAME_IDS_BACK = "frameIdsBack"
    FRAME_STAMPS = "frameStamps"
    FRAME_FROZEN = "frameFrozen"
    FRAMES_DROPPED = "framesDropped"
    NO_FRAME = "noFrame"
    CAMERA_LOST = "cameraLost"
    INPUT_REJECTED = "inputRejected"
    MESSAGE_REJECTED = "messageRejected"
    LOG_LOST = "logLost"
    METRICS_LOST = "metricsLost"


@dataclass(slots=True)
class LoopState:
    """The progress of a loop."""

    phase: Phase = Phase.STARTING
    iterated_ns: int = 0  # end of the last wait for a frame, successful or not
    awaiting_ns: int = 0  # arrival of the first usable frame not yet published; 0 for none
    running_ns: int = 0  # start of the current model run; 0 for none
    published_ns: int = 0  # time of the last messages
    frame_id: int = 0  # id of the last used frame
    frames: int = 0  # number of used frames
    published: int = 0  # number of frames with messages
    valid: int = 0  # number of frames with valid messages
    dropped: int = 0  # number of frames missing between used ones
    # When the last unusable frames arrived, and why they are unusable.
    refused: tuple[int, str] = (0, "")
    reasons: tuple[str, ...] = ()  # why the last messages were invalid, for display
    warm_up_left: int = 0  # number of runs until the model's histories are full
    model: str = ""  # name of the model in use
    fallback: str = ""  # why the fallback model is in use; "" if it is not
    problems: tuple[str, ...] = ()  # why models turned out to be unusable in the loop
    faults: dict[Fault, int] = field(default_factory=lambda: dict.fromkeys(Fault, 0))
    stages: StageTimes = field(default_factory=StageTimes)

    def refusal(self, now_ns: int) -> str:
        """Return why current frames are not used; "" if they are used or none arrive."""
        refused_ns, why = self.refused
        used_ns = max(self.published_ns, self.awaiting_ns)
        is_now = refused_ns > used_ns and now_ns - refused_ns <= _LATELY_NS
        return f"{REFUSED}: {why}" if is_now else ""

    def count(self, fault: Fault, times: int = 1) -> None:
        """Count a fault `times` times."""
        self.faults[fault] += times


# --- The current run of the model, which another thread can give up ---------------------------
# A run in the driver cannot be interrupted. If it is given up, its thread is abandoned, and ends
# silently when the driver's call returns, if it ever does (ADR 0086).


class RunGuard:
    """Guards the runs of a loop's model and maintains ``running_ns`` of the state."""

    def __init__(self, state: LoopState) -> None:
        self._state = state
        self._turn = 0
        # It is held for a comparison and an assignment only, so no thread waits for a run.
        self._lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Mark the block as a run; raise RunAbandonedError at its end if it was given up."""
        turn = self._turn
        self._state.running_ns = time.monotonic_ns()
        try:
            yield
        finally:
            with self._lock:
                abandoned = self._turn != turn
                if not abandoned:
                    self._state.running_ns = 0
            if abandoned:
                raise RunAbandonedError

    def abandon(self, began_ns: int) -> bool:
        """Give up the run that began at `began_ns`; return False if it has already ended."""
        with self._lock:
            if began_ns == 0 or self._state.running_ns != began_ns:
                return False
            self._turn += 1
            self._state.running_ns = 0
            return True
