"""Pairs the frames of two cameras by their start-of-frame time stamps.

The main camera sets the pace and delivers only its newest frame; the extra camera delivers every
frame, and catches up. Rules and figures: openpilot modeld, 2022-2026; what is retained between
calls, and the bound on receiving, is ADR 0020; what happens without the extra camera ADR 0081.
"""

import logging
from dataclasses import dataclass, field
from typing import Final, Protocol

from cereal.frames import Frame, FrameSource
from modeld.errors import FrameTimestampError
from modeld.throttle import Throttle

logger = logging.getLogger(__name__)

# Half a frame period at 20 Hz: closer than that and two frames belong to one moment.
PAIRING_WINDOW_NS: Final = 25_000_000
# Cameras of one device are triggered together, within 2 ms; beyond this something is wrong.
SYNC_WARNING_NS: Final = 10_000_000
# 3 s at 20 Hz, far more than any ring of frames holds: no catching up takes that many.
MAX_RECEIVES: Final = 60
# One wait for the extra camera, and how long to wait in all: 6 frames at 20 Hz. Then it takes up to
# 2 frames more until messages go out: others give up when none has come for 0.5 s.
EXTRA_WAIT_MS: Final = 100
LOST_AFTER_MS: Final = 300
# While it is lost, how long to wait for the partner of a frame once it sends again: the main camera
# must not lose frames by it.
RETURN_WAIT_MS: Final = 40
# No camera is faster than 1000 frames/s: stamps that advance less per frame are not nanoseconds.
MIN_FRAME_PERIOD_NS: Final = 1_000_000


class CameraSource(FrameSource, Protocol):
    """A source whose frames lie in memory that the camera process writes to."""

    def is_intact(self) -> bool:
        """Tell whether the data of the frame received last is still that frame's."""
        ...


@dataclass(frozen=True, slots=True)
class FramePair:
    """The frames of one moment; the same frame twice with a single camera.

    Attributes:
        main: Frame of the camera that sets the pace.
        extra: Frame of the second view.
        lacks_extra: The extra camera is lost; ``extra`` is the main frame in its place.
    """

    main: Frame
    extra: Frame
    lacks_extra: bool = False


@dataclass(slots=True)
class FrameSync:
    """Pairs frames.

    Attributes:
        main: Source of the frames that pace the loop; should conflate.
        extra: Source of the second view, must not conflate; None with a single camera.
        timeout_ms: Longest wait for one frame.
    """

    main: CameraSource
    extra: CameraSource | None
    timeout_ms: int = 100
    _main_frame: Frame | None = None
    _extra_sof_ns: int | None = None
    # After time went back: frames of the extra camera beyond this are of the time before.
    _stale_after_ns: int | None = None
    # Time spent waiting for the extra camera since the last pair.
    _waited_ms: int = 0
    _is_lost: bool = False
    _no_frame: Throttle = field(default_factory=Throttle)
    _unpaired: Throttle = field(default_factory=lambda: Throttle(period=10))
    _out_of_sync: Throttle = field(default_factory=Throttle)

    def receive(self) -> FramePair | None:
        """Wait for the next pair.

        Returns:
            None when a camera delivered nothing within the timeout, or nothing that pairs.

        Raises:
            FrameTimestampError: Time stamps advance too slowly to be nanoseconds.
        """
        main = self._next_main()
        if main is None:
            return None
        if self.extra is None:
            self._extra_sof_ns = main.timestamp_sof_ns
            return FramePair(main, main)
        if self._is_lost:
            extra = self._returned_extra(self.extra, main)
        else:
            extra = self._next_extra(self.extra, main)
        if extra is None:
            return self._without_extra(main)
        self._waited_ms = 0
        # The stamps are starts of frame: both sensors should begin within the warning's limit.
        gap_ns = abs(main.timestamp_sof_ns - extra.timestamp_sof_ns)
        if gap_ns > SYNC_WARNING_NS and self._out_of_sync.hit():
            logger.error(
                "frames out of sync: main frame %d and extra frame %d start %.1f ms apart "
                "(%d such pairs so far)",
                main.frame_id,
                extra.frame_id,
                gap_ns / 1e6,
                self._out_of_sync.total,
            )
        return FramePair(main, extra)

    def is_intact(self) -> bool:
        """Tell whether the last pair was not overwritten while it was used."""
        if not self.main.is_intact():
            return False
        return self.extra is None or self._is_lost or self.extra.is_intact()

    def _next_main(self) -> Frame | None:
        """Receive until the main frame is newer than the previous extra frame."""
        # The first frame of the run is kept, as its stamps show whether they are nanoseconds at
        # all.
        first: Frame | None = None
        # The number of frames is bounded, so that cameras that never pair do not stop the loop.
        for _ in range(MAX_RECEIVES):
            # A main frame that is ahead already waited for its partner in the call before.
            if self._main_is_ahead():
                return self._main_frame
            frame = self.main.receive(self.timeout_ms)
            if frame is None:
                self._report_no_frame("main", self.timeout_ms)
                return None
            first = first or frame
            self._notice_restart(frame)
            self._main_frame = frame
        if self._main_is_ahead():
            return self._main_frame
        self._report_unpaired("main", first, self._main_frame, self._extra_sof_ns)
        # One wrong stamp of the extra camera must not stop pairing until real time reaches it.
        self._extra_sof_ns = None
        return None

    def _main_is_ahead(self) -> bool:
        if self._main_frame is None or self._extra_sof_ns is None:
            return self._main_frame is not None
        return self._main_frame.timestamp_sof_ns >= self._extra_sof_ns + PAIRING_WINDOW_NS

    def _notice_restart(self, frame: Frame) -> None:
        """Forget the extra frame's stamp when the main camera's time goes back, see ADR 0020.

        A new writer of the rings, as a second drive that is played, begins at its own time.
        """
        before, extra_ns = self._main_frame, self._extra_sof_ns
        if before is None or extra_ns is None:
            return
        sof_ns = frame.timestamp_sof_ns
        # A jump back inside the pairing window may be jitter, and needs no new start.
        if sof_ns < before.timestamp_sof_ns and sof_ns + PAIRING_WINDOW_NS <= extra_ns:
            logger.info(
                "main camera: time goes back from %d to %d ns at frame %d; pairing anew",
                before.timestamp_sof_ns,
                sof_ns,
                frame.frame_id,
            )
            self._extra_sof_ns, self._stale_after_ns = None, extra_ns

    def _is_stale(self, extra: Frame) -> bool:
        """Tell whether a frame was left in the extra camera's ring when time went back."""
        after_ns = self._stale_after_ns
        if after_ns is not None and extra.timestamp_sof_ns > after_ns:
            return True
        # The first frame that is not from before ends the search: later ones are new for certain.
        self._stale_after_ns = None
        return False

    def _next_extra(self, source: CameraSource, main: Frame) -> Frame | None:
        """Receive until the extra frame has caught up with the main frame."""
        first: Frame | None = None
        frame: Frame | None = None
        wait_ms = min(self.timeout_ms, EXTRA_WAIT_MS)
        for _ in range(MAX_RECEIVES):
            frame = source.receive(wait_ms)
            if frame is None:
                self._waited_ms += wait_ms
                self._report_no_frame("extra", wait_ms)
                return None
            if self._is_stale(frame):
                continue
            first = first or frame
            self._extra_sof_ns = frame.timestamp_sof_ns
            # The extra camera does not conflate, so older frames are read until one has caught up.
            if main.timestamp_sof_ns < frame.timestamp_sof_ns + PAIRING_WINDOW_NS:
                return frame
        # Each of these frames was waited for: a camera with a clock of its own is as good as none.
        self._waited_ms = LOST_AFTER_MS
        self._report_unpaired("extra", first, frame, main.timestamp_sof_ns)
        return None

    def _without_extra(self, main: Frame) -> FramePair | None:
        """Return the main frame alone if the extra camera is lost, else None: it may be late."""
        if not self._is_lost:
            if self._waited_ms < LOST_AFTER_MS:
                return None
            self._is_lost = True
            main = self._newest_main(main)
            logger.error(
                "extra camera lost: none of its frames belongs to main frame %d within %d ms; "
                "going on with the main camera alone, messages marked invalid",
                main.frame_id,
                self._waited_ms,
            )
        # As with a single camera: the next main frame must be a new moment.
        self._extra_sof_ns = main.timestamp_sof_ns
        return FramePair(main, main, lacks_extra=True)

    def _newest_main(self, main: Frame) -> Frame:
        """Return the newest of the frames that came while the extra camera was waited for."""
        for _ in range(MAX_RECEIVES):
            newer = self.main.receive(0)
            if newer is None:
                break
            self._notice_restart(newer)
            self._main_frame = main = newer
        return main

    def _returned_extra(self, source: CameraSource, main: Frame) -> Frame | None:
        """Look for the partner of a main frame while the extra camera is lost."""
        wait_ms = 0
        for _ in range(MAX_RECEIVES):
            frame = source.receive(wait_ms)
            if frame is None:
                return None
            if self._is_stale(frame):
                continue
            if abs(main.timestamp_sof_ns - frame.timestamp_sof_ns) < PAIRING_WINDOW_NS:
                self._is_lost = False
                self._extra_sof_ns = frame.timestamp_sof_ns
                logger.warning(
                    "extra camera is back at frame %d, main frame %d",
                    frame.frame_id,
                    main.frame_id,
                )
                return frame
            # It sends again: the partner of this moment may be on its way.
            wait_ms = RETURN_WAIT_MS
        return None

    def _report_no_frame(self, camera: str, wait_ms: int) -> None:
        if self._no_frame.hit():
            logger.warning(
                "no frame from the %s camera within %d ms (%d such waits so far)",
                camera,
                wait_ms,
                self._no_frame.total,
            )

    def _report_unpaired(
        self, camera: str, first: Frame | None, last: Frame | None, other_sof_ns: int | None
    ) -> None:
        """Say why a run of frames paired with nothing; see ADR 0020.

        Raises:
            FrameTimestampError: The stamps of the run are not nanoseconds.
        """
        if first is None or last is None:
            return
        frames = last.frame_id - first.frame_id
        elapsed_ns = last.timestamp_sof_ns - first.timestamp_sof_ns
        # Consecutive frames closer than the shortest period mean another unit, such as
        # microseconds.
        if frames > 0 and 0 <= elapsed_ns < frames * MIN_FRAME_PERIOD_NS:
            raise FrameTimestampError(
                f"{camera} camera: frames {first.frame_id}..{last.frame_id}: expected start-of-"
                f"frame stamps in nanoseconds, got {first.timestamp_sof_ns}.."
                f"{last.timestamp_sof_ns}; let the camera source multiply its stamps"
            )
        if self._unpaired.hit():
            logger.error(
                "%s camera: %d frames up to %d (start of frame %d ns) pair with none of the other "
                "camera (%s ns); check that both cameras use one clock (%d such runs so far)",
                camera,
                MAX_RECEIVES,
                last.frame_id,
                last.timestamp_sof_ns,
                other_sof_ns,
                self._unpaired.total,
            )
