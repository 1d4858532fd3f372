"""Checks the frames of one camera against earlier ones.

`FrameJudge` checks frame ids, time stamps and whether the picture still changes; `DropFilter`
counts missing frames. ``modeld.frames.camera_input`` checks the content of a single frame, and
``modeld.frames.frame_sync`` pairs the frames of two cameras. Rationale: ADR 0020.
"""

from dataclasses import dataclass
from typing import Final

from cereal.frames import Frame
from modeld.constants import DT_MODEL_S
from modeld.state.episodes import NS_PER_S, Episodes, Kind
from modeld.state.loop_state import Fault
from modeld.vehicle.validity import Reason

# The picture is frozen after this many identical frames, one second. Sensor noise changes every
# real picture.
FROZEN_FRAMES: Final = 20
# Number of luma bytes to compare, spread evenly over the picture.
SAMPLES: Final = 256
# Below this speed a rendered picture can stand still, so it is not called frozen.
MOVING_MPS: Final = 1.0
# Permitted difference between stamp and clock from one frame to the next; hiccups are shorter.
JUMP_NS: Final = NS_PER_S

_IDS: Final = Kind("frame ids", fault=Fault.FRAME_IDS_BACK, quiet_ns=2 * NS_PER_S)
_STAMPS: Final = Kind("frame stamps", fault=Fault.FRAME_STAMPS, quiet_ns=2 * NS_PER_S)
_FROZEN: Final = Kind(
    "frozen picture", over="pictures change again", unit="frames", fault=Fault.FRAME_FROZEN
)


@dataclass(slots=True)
class FrameJudge:
    """Checks the frames of one camera. Pass each used frame once, in order."""

    camera: str  # "road", "wide" or "driver", for messages
    episodes: Episodes  # receives faults
    # Number of runs that see a frame's image, its own included. A frame with a wrong id or stamp
    # makes messages invalid for this many frames.
    hold: int = 1
    is_timed: bool = True  # stamps follow the loop's clock; False if simulated time is uneven
    # The last frame is older than the one before it, so the model's histories must be reset.
    restarted: bool = False
    reasons: tuple[Reason, ...] = ()  # why messages from the last frame are invalid
    _last: tuple[int, int, int] | None = None
    _held: Reason | None = None
    _left: int = 0
    _samples: bytes = b""
    _same: int = 0
    _same_since_ns: int = 0

    def look(self, frame: Frame, now_ns: int, *, moving: bool) -> None:
        """Check the next frame; set `restarted` and `reasons`.

        The picture must change if the car is `moving`. `now_ns` is the loop's time.
        """
        self.restarted = False
        if self._last is not None:
            self._compare(frame, now_ns, *self._last)
        self._last = (frame.frame_id, frame.timestamp_sof_ns, now_ns)
        self._sample(frame, now_ns)
        reasons: tuple[Reason, ...] = ()
        if self._left > 0 and self._held is not None:
            self._left -= 1
            reasons = (self._held,)
        if moving and self._same >= FROZEN_FRAMES:
            same_s = (now_ns - self._same_since_ns) / NS_PER_S
            text = f"{self.camera} camera: the same picture since {same_s:.1f} s"
            self.episodes.happen(_FROZEN, f"{text}, up to frame {frame.frame_id}")
            reasons = (*reasons, Reason(f"{self.camera} frozen", text))
        self.reasons = reasons

    def _compare(
        self, frame: Frame, now_ns: int, last_id: int, last_sof: int, last_ns: int
    ) -> None:
        """Compare id and stamp with those of the previous frame."""
        frame_id, sof_ns = frame.frame_id, frame.timestamp_sof_ns
        if frame_id <= last_id:
            self.restarted = frame_id < last_id
            what = f"go back from {last_id} to" if self.restarted else "stand still at"
            self._wrong(_IDS, f"ids {what} {frame_id}")
            # Do not compare the stamps: a restarted camera also has new stamps.
            return
        step_ns, passed_ns = sof_ns - last_sof, now_ns - last_ns
        if step_ns < 0:
            self.restarted = True
            self._wrong(
                _STAMPS, f"frame {frame_id} starts {-step_ns / NS_PER_S:.1f} s before the last"
            )
        elif self.is_timed and abs(step_ns - passed_ns) > JUMP_NS and passed_ns >= 0:
            off_s = (step_ns - passed_ns) / NS_PER_S
            what = "ahead of" if off_s > 0 else "behind"
            self._wrong(_STAMPS, f"frame {frame_id} starts {abs(off_s):.1f} s {what} its time")

    def _wrong(self, kind: Kind, text: str) -> None:
        text = f"{self.camera} camera: {text}"
        self.episodes.happen(kind, text)
        self._held, self._left = Reason(f"{self.camera} {kind.name}", text), self.hold

    def _sample(self, frame: Frame, now_ns: int) -> None:
        """Count consecutive frames whose sampled luma bytes are identical."""
        luma = frame.data[: frame.format.stride * frame.format.height]
        samples = luma[:: max(1, luma.size // SAMPLES) | 1].tobytes()
        if samples == self._samples:
            self._same += 1
            return
        self._samples, self._same, self._same_since_ns = samples, 0, now_ns


# --- Dropped frames and their smoothed share. Constants: openpilot modeld, 2023-2025 ----------

FILTER_TIME_CONSTANT_S: Final = 10.0
FILTER_ALPHA: Final = DT_MODEL_S / (FILTER_TIME_CONSTANT_S + DT_MODEL_S)
# Maximum number of drops counted per iteration, so one long gap does not keep the filter high for
# minutes.
MAX_COUNTED_DROPS: Final = 10
# At start-up, frames are dropped while buffers fill. They do not indicate a lagging model.
WARM_UP_FRAMES: Final = 10


@dataclass(frozen=True, slots=True)
class DropStatus:
    """Dropped frames at one iteration."""

    dropped: int  # frame ids missing between the previous frame and this one
    percent: float  # smoothed share of dropped frames, 0..100


@dataclass(slots=True)
class DropFilter:
    """First-order filter over the number of dropped frames per iteration."""

    filtered: float = 0.0  # smoothed drops per iteration
    last_frame_id: int | None = None  # last main frame; None before the first (ADR 0020)
    iterations: int = 0  # frames seen so far

    def update(self, frame_id: int) -> DropStatus:
        """Count a new main frame; a camera that restarts at id 0 has dropped no frames."""
        last = frame_id - 1 if self.last_frame_id is None else self.last_frame_id
        dropped = max(0, frame_id - last - 1)
        self.last_frame_id = frame_id
        self.filtered += FILTER_ALPHA * (min(dropped, MAX_COUNTED_DROPS) - self.filtered)
        if self.iterations < WARM_UP_FRAMES:
            self.filtered = 0.0
        self.iterations += 1
        return DropStatus(dropped, 100.0 * self.filtered / (1.0 + self.filtered))
