"""The progress of a loop and the times of its stages: written by its thread alone, read by others.

Each field is one object that is replaced whole, so a reader sees an old or a new value and needs no
lock. Stamps are ns of ``time.monotonic_ns``, whatever clock stamps the messages; 0 is never.
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

# --- Times of one frame by stage, in histograms that are allocated once -----------------------

# In the order in which a frame goes through them; times between consecutive marks.
STAGES: Final = ("wait", "inputs", "model", "publish")
# Upper bounds in ms, fine around the 50 ms of a frame; the last bucket has no bound.
BOUNDS_MS: Final = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
                    50.0, 75.0, 100.0, 150.0, 250.0, 500.0, 1000.0)  # fmt: skip
NS_PER_MS: Final = 1_000_000


@dataclass(slots=True)
class Histogram:
    """Counts of durations since the start: one for each of `BOUNDS_MS`, and one beyond."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    total_ns: int = 0

    def add(self, duration_ns: int) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_MS, duration_ns / NS_PER_MS)] += 1
        self.total_ns += duration_ns


@dataclass(slots=True)
class StageTimes:
    """A histogram for each of `STAGES`, filled by marks that a loop sets as it goes."""

    histograms: dict[str, Histogram] = field(
        default_factory=lambda: {stage: Histogram() for stage in STAGES}
    )
    _last_ns: int = 0

    def begin(self, now_ns: int) -> None:
        """Begin a frame."""
        self._last_ns = now_ns

    def mark(self, stage: str, now_ns: int) -> None:
        """End a stage, which began at the mark before."""
        self.histograms[stage].add(now_ns - self._last_ns)
        self._last_ns = now_ns


# --- The progress -----------------------------------------------------------------------------

# A refusal expires after this time without another one: frames have stopped.
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
    """Kinds of faults that are counted; names as in docs/faults.md, in health and in metrics."""

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
    iterated_ns: int = 0  # its last return from a wait for a frame, with or without one
    awaiting_ns: int = 0  # arrival of the first usable frame not yet published; 0 for none
    running_ns: int = 0  # start of the model's present run; 0 for none
    published_ns: int = 0  # of the last messages
    frame_id: int = 0  # of the last frame used
    frames: int = 0  # used
    published: int = 0  # frames for which messages went out
    valid: int = 0  # frames whose messages were valid
    dropped: int = 0  # frames missing between those used
    # When the last unusable frames came, and why; they count as no frames.
    refused: tuple[int, str] = (0, "")
    reasons: tuple[str, ...] = ()  # why the last messages were not valid, for a person
    warm_up_left: int = 0  # runs until the model's histories are full
    model: str = ""  # name of the model in use
    fallback: str = ""  # why the fallback model is in use; "" while the primary one is
    problems: tuple[str, ...] = ()  # models that the loop has found to be unusable
    faults: dict[Fault, int] = field(default_factory=lambda: dict.fromkeys(Fault, 0))
    stages: StageTimes = field(default_factory=StageTimes)

    def refusal(self, now_ns: int) -> str:
        """Return why the frames that come now are not used; "" if they are, or none come."""
        refused_ns, why = self.refused
        used_ns = max(self.published_ns, self.awaiting_ns)
        is_now = refused_ns > used_ns and now_ns - refused_ns <= _LATELY_NS
        return f"{REFUSED}: {why}" if is_now else ""

    def count(self, fault: Fault, times: int = 1) -> None:
        """Count a fault."""
        self.faults[fault] += times


# --- The present run of the model, which another thread can give up ---------------------------
# Nothing can interrupt a run inside the driver. Its thread is left behind, and ends without another
# act when the call returns, if it ever does (ADR 0086).


class RunGuard:
    """The present run of a loop's model; it keeps ``running_ns`` of the state."""

    def __init__(self, state: LoopState) -> None:
        self._state = state
        self._turn = 0
        # It is held for a comparison and an assignment only, so neither side waits for a run.
        self._lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Mark a run; raise RunAbandonedError at its end if it was given up."""
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
        """Give up the run that began at `began_ns`; return False if it has ended meanwhile."""
        with self._lock:
            if began_ns == 0 or self._state.running_ns != began_ns:
                return False
            self._turn += 1
            self._state.running_ns = 0
            return True
