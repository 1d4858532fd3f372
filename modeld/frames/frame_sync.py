"""Pairs the frames of two cameras by their start-of-frame time stamps.

The main camera sets the pace and delivers only its newest frame. The extra camera delivers every
frame, and is read until it has caught up with the main frame. Rules and limits are those of
openpilot's modeld, 2022-2026. ADR 0020 describes the state between calls, the bound on receiving,
and operation without the extra camera.
"""

from dataclasses import dataclass, field
from typing import Final

from cereal.cameras import CameraSource
from cereal.frames import Frame
from modeld.frames.frame_log import MAX_RECEIVES, SyncLog, UnpairedRun
from modeld.state.loop_state import NS_PER_MS

# Half a frame period at 20 Hz: two frames closer than this belong to one moment.
PAIRING_WINDOW_NS: Final = 25_000_000
# Larger differences are logged. Cameras of one device are triggered within 2 ms of each other.
SYNC_WARNING_NS: Final = 10_000_000
# The longest wait for the extra camera.
EXTRA_WAIT_MS: Final = 100
# Time without a pair after which the extra camera is lost: 6 frames at 20 Hz. Publishing resumes up
# to 2 frames later, before subscribers give up at 0.5 s.
LOST_AFTER_MS: Final = 300
# The wait for a frame of a lost camera that is due now. It is short, so no main frame is lost.
RETURN_WAIT_MS: Final = 40
# A lost extra camera whose frames did not pair counts as back after this many consecutive main
# frames with a partner. A camera of 10 or 15 Hz has partners for 2 or 3 of 4 main frames: it stays
# lost, because pairing it costs main frames.
RETURN_PAIRS: Final = 4


@dataclass(frozen=True, slots=True)
class FramePair:
    """The frames of one moment; the same frame twice with a single camera."""

    main: Frame  # frame of the camera that sets the pace
    extra: Frame  # frame for the second view
    lacks_extra: bool = False  # the extra camera is lost; ``extra`` is the main frame
    apart: bool = False  # the frames start a pairing window or more apart: two moments


@dataclass(slots=True)
class FrameSync:
    """Pairs the frames of two cameras.

    One call waits at most once for each camera: `timeout_ms` for the main one, and at most
    EXTRA_WAIT_MS for the extra one.
    """

    main: CameraSource  # source that paces the loop; should conflate (keep only its newest frame)
    extra: CameraSource | None  # second source; must not conflate; None with a single camera
    log: SyncLog  # receives faults
    timeout_ms: int = 100
    _main_frame: Frame | None = None
    _extra_sof_ns: int | None = None
    # Set after the main camera's time went back. Extra frames with later stamps than this are from
    # before the jump.
    _stale_after_ns: int | None = None
    # Number of consecutive good pairs (frames of one moment). Fewer than RETURN_PAIRS do not reset
    # `_missed_ns`.
    _good_pairs: int = RETURN_PAIRS
    # Time without a good pair: waits for the extra camera and, after a pair of two moments, waits
    # for the main camera to pass it.
    _missed_ns: int = 0
    _is_lost: bool = False
    # While the extra camera is lost: the stamp of its last frame, the time between its last two
    # frames, the number of consecutive main frames with a partner, and the number required.
    _seen_sof_ns: int | None = None
    _seen_period_ns: int | None = None
    _returned: int = 0
    _pairs_needed: int = RETURN_PAIRS
    _main_run: UnpairedRun = field(default_factory=UnpairedRun)
    _extra_run: UnpairedRun = field(default_factory=UnpairedRun)

    def receive(self) -> FramePair | None:
        """Wait for the next pair.

        Returns None if a camera delivered no frame within the timeout, or no frame that pairs.
        """
        main = self._next_main()
        if main is None:
            return None
        if self.extra is None:
            self._extra_sof_ns = main.timestamp_sof_ns
            return FramePair(main, main)
        extra: Frame | None = None
        if self._is_lost:
            extra = self._returned_extra(self.extra, main)
        elif self._missed_ns < LOST_AFTER_MS * NS_PER_MS:
            extra = self._next_extra(self.extra, main)
        if extra is None:
            return self._without_extra(main)
        # Both sensors should start their frames within SYNC_WARNING_NS of each other.
        gap_ns = abs(main.timestamp_sof_ns - extra.timestamp_sof_ns)
        apart = gap_ns >= PAIRING_WINDOW_NS
        self._good_pairs = 0 if apart else self._good_pairs + 1
        if self._good_pairs >= RETURN_PAIRS:
            self._missed_ns = 0
        if gap_ns > SYNC_WARNING_NS:
            self.log.out_of_sync(main, extra, gap_ns)
        return FramePair(main, extra, apart=apart)

    def expect_extra(self, source: CameraSource) -> None:
        """Switch from a single camera to two; the extra one is lost until its first pair."""
        self.extra = source
        self._is_lost, self._pairs_needed, self._good_pairs = True, 1, 0
        # A new reader has no frames from before a jump in time.
        self._stale_after_ns = None
        self.log.missing()

    def is_intact(self) -> bool:
        """Return whether the last pair has not been overwritten during use."""
        if not self.main.is_intact():
            return False
        return self.extra is None or self._is_lost or self.extra.is_intact()

    def _next_main(self) -> Frame | None:
        """Receive until the main frame is newer than the previous extra frame.

        Once the extra camera counts as lost, an older main frame is returned, too.
        """
        wait_ms = self.timeout_ms
        # The number of frames is bounded, so cameras that never pair cannot block the loop.
        for _ in range(MAX_RECEIVES):
            # The previous call already received this main frame, but no partner for it.
            if self._main_is_ahead():
                break
            frame = self.main.receive(wait_ms)
            if frame is None:
                if wait_ms > 0:
                    self.log.no_main_frame(wait_ms)
                return None
            # Wait only once per call, so that a stop is noticed between waits.
            wait_ms = 0
            before_ns = self._main_frame.timestamp_sof_ns if self._main_frame else None
            self.log.main_frame()
            if before_ns == frame.timestamp_sof_ns:
                self.log.same_start(frame)
            self._notice_restart(frame)
            self._main_frame = frame
            if self._good_pairs == 0 and not self._is_lost:
                self._missed_ns += _elapsed_ns(before_ns, frame.timestamp_sof_ns)
                if self._missed_ns >= LOST_AFTER_MS * NS_PER_MS:
                    break
            # The run keeps its first frame, to detect stamps that are not in nanoseconds.
            if not self._main_is_ahead() and self._main_run.add(frame):
                is_time = self.log.unpaired(self._main_run, frame, self._extra_sof_ns, of_main=True)
                # One extra stamp in the far future must not stop pairing until real time reaches
                # it. If the main stamps are not times, resetting does not help.
                if is_time:
                    self._extra_sof_ns = None
                return None
        self._main_run.clear()
        return self._main_frame

    def _main_is_ahead(self) -> bool:
        if self._main_frame is None or self._extra_sof_ns is None:
            return self._main_frame is not None
        return self._main_frame.timestamp_sof_ns >= self._extra_sof_ns + PAIRING_WINDOW_NS

    def _notice_restart(self, frame: Frame) -> None:
        """Forget the extra frame's stamp when the main camera's time goes back, see ADR 0020.

        For example, this happens when a second recorded drive is played.
        """
        before, extra_ns = self._main_frame, self._extra_sof_ns
        if before is None or extra_ns is None:
            return
        sof_ns = frame.timestamp_sof_ns
        # A jump back within the pairing window can be jitter and needs no restart.
        if sof_ns < before.timestamp_sof_ns and sof_ns + PAIRING_WINDOW_NS <= extra_ns:
            self.log.time_back(before, frame)
            self._extra_sof_ns, self._stale_after_ns = None, extra_ns

    def _is_stale(self, extra: Frame) -> bool:
        """Return whether an extra frame is from before the main camera's time went back."""
        after_ns = self._stale_after_ns
        if after_ns is not None and extra.timestamp_sof_ns > after_ns:
            return True
        # This is the first frame after the jump, so all later ones are new.
        self._stale_after_ns = None
        return False

    def _next_extra(self, source: CameraSource, main: Frame) -> Frame | None:
        """Receive until the extra frame has caught up with the main frame; wait at most once."""
        wait_ms = min(self.timeout_ms, EXTRA_WAIT_MS)
        waited = False
        for _ in range(MAX_RECEIVES):
            frame = source.receive(0)
            before_ns = self._extra_sof_ns
            if frame is None:
                # The next call continues with the same main frame.
                if waited:
                    return None
                waited = True
                frame = source.receive(wait_ms)
                if frame is None:
                    self._missed_ns += wait_ms * NS_PER_MS
                    self.log.no_extra_frame(wait_ms)
                    return None
            elif not waited:
                # The frame was already queued, so no time was spent on waiting for it.
                before_ns = frame.timestamp_sof_ns
            if self._is_stale(frame):
                # Stamps from before the jump do not measure the wait.
                self._missed_ns += wait_ms * NS_PER_MS if waited else 0
                continue
            self._extra_sof_ns = frame.timestamp_sof_ns
            # The extra camera does not conflate, so older frames are read until one has caught up.
            if main.timestamp_sof_ns < frame.timestamp_sof_ns + PAIRING_WINDOW_NS:
                self._extra_run.clear()
                return frame
            self._missed_ns += _elapsed_ns(before_ns, frame.timestamp_sof_ns)
            if self._extra_run.add(frame):
                self.log.unpaired(self._extra_run, frame, main.timestamp_sof_ns, of_main=False)
                self._missed_ns = LOST_AFTER_MS * NS_PER_MS
                return None
        return None

    def _without_extra(self, main: Frame) -> FramePair | None:
        """Return a pair of main frames if the extra camera is lost; None if it can be just late."""
        if not self._is_lost:
            if self._missed_ns < LOST_AFTER_MS * NS_PER_MS:
                return None
            main = self._newest_main(main)
            self.log.lost(main, self._missed_ns, self._extra_sof_ns)
            # A camera that was silent is back after one pair. One whose frames did not pair needs
            # RETURN_PAIRS.
            was_silent = self._good_pairs >= RETURN_PAIRS and self._extra_run.count == 0
            self._pairs_needed = 1 if was_silent else RETURN_PAIRS
            self._is_lost, self._good_pairs, self._missed_ns = True, 0, 0
            self._returned, self._seen_sof_ns, self._seen_period_ns = 0, None, None
            self._extra_run.clear()
        self.log.without_extra()
        # As with a single camera, the next main frame must be a new moment.
        self._extra_sof_ns = main.timestamp_sof_ns
        return FramePair(main, main, lacks_extra=True)

    def _newest_main(self, main: Frame) -> Frame:
        """Return the newest main frame that arrived during the wait for the extra camera.

        One receive returns it, because the main source conflates. In lock step, a second receive
        would return a frame of a later step.
        """
        newer = self.main.receive(0)
        if newer is None:
            return main
        self._notice_restart(newer)
        self._main_frame = newer
        return newer

    def _returned_extra(self, source: CameraSource, main: Frame) -> Frame | None:
        """Return the partner of a main frame once the lost extra camera counts as back."""
        frame = self._partner(source, main)
        self._returned = 0 if frame is None else self._returned + 1
        if frame is None or self._returned < self._pairs_needed:
            return None
        self._is_lost = False
        self.log.extra_back()
        self._extra_sof_ns = frame.timestamp_sof_ns
        return frame

    def _partner(self, source: CameraSource, main: Frame) -> Frame | None:
        """Read the frames of a lost extra camera; wait once if the partner is due now."""
        waited = False
        for _ in range(MAX_RECEIVES):
            frame = source.receive(0)
            if frame is None:
                if waited or not self._is_partner_due(main):
                    return None
                waited = True
                frame = source.receive(RETURN_WAIT_MS)
            if frame is None:
                return None
            if self._is_stale(frame):
                continue
            sof_ns, seen_ns = frame.timestamp_sof_ns, self._seen_sof_ns
            self._seen_sof_ns = sof_ns
            self._seen_period_ns = None if seen_ns is None else sof_ns - seen_ns
            if abs(main.timestamp_sof_ns - sof_ns) < PAIRING_WINDOW_NS:
                return frame
        return None

    def _is_partner_due(self, main: Frame) -> bool:
        """Return whether the next frame of a lost extra camera can be the main frame's partner."""
        if self._seen_sof_ns is None:
            return False
        gap_ns = main.timestamp_sof_ns - self._seen_sof_ns
        if not 0 < gap_ns < EXTRA_WAIT_MS * NS_PER_MS:
            return False
        # Use the camera's own period once two of its frames have been seen.
        period_ns = gap_ns if self._seen_period_ns is None else self._seen_period_ns
        return abs(gap_ns - period_ns) < PAIRING_WINDOW_NS


def _elapsed_ns(before_ns: int | None, sof_ns: int) -> int:
    """Return the time between two stamps, at most EXTRA_WAIT_MS.

    Returns that bound if the first stamp is missing or the second is earlier.
    """
    bound_ns = EXTRA_WAIT_MS * NS_PER_MS
    if before_ns is None or sof_ns < before_ns:
        return bound_ns
    return min(sof_ns - before_ns, bound_ns)
