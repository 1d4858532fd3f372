"""Writes a drive as openpilot's logger does: one directory per minute, with a full and a small log.

`<root>/<route>--<n>/` holds `rlog.zst` (all messages), `qlog.zst` (a thinned selection) and, while
they are written, `rlog.lock`. Each log begins with initData, which describes the device, and is
enclosed by two sentinel messages (docs/formats/bus.md).
"""

import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from cereal.errors import LogError, MessageError
from cereal.log_writer import GrowingLogWriter, LogSink
from cereal.schema import member_name, new_event, read_event
from cereal.services import service_of_member

SEGMENT_NS: Final = 60_000_000_000
"""Length of a segment."""

# Segments switch when the video encoders do. Without video for this long, the clock decides.
_QUIET_NS: Final = 500_000_000
# A segment ends after this even if one encoder lags behind the others: 1.2 times its length.
_LONGEST_NS: Final = SEGMENT_NS * 6 // 5
# Maximum number of frames of the next segment, per encoder, to hold while other encoders finish
# theirs.
_MAX_WAITING: Final = 200
_ENCODE_INDICES: Final = frozenset(
    {"roadEncodeIdx", "wideRoadEncodeIdx", "driverEncodeIdx", "qRoadEncodeIdx"}
)


class SegmentLogWriter:
    """A log sink that splits a drive into segments.

    The Events alone (their `logMonoTime` and the segment numbers of the encoded frames) decide
    which segment an Event goes to, never a clock: the same Events give the same files. A segment
    ends when each encoder that wrote into it has announced a frame of a later one. With no video
    for 0.5 s it ends 60 s after its first Event, and in any case 72 s after it.

    Args:
        root: The directory of the segments; created if missing.
        route: Name of the drive without a segment number.
        init_data: The bytes of the Event that begins each log; see `init_data_event`.
        first_segment: Number of the first segment; 0 begins a route.
        open_sink: `GrowingLogWriter` to survive a crash, or `LogWriter` to keep only complete
            segments.

    Raises:
        LogError: `route` is not a valid name, `init_data` is not initData, or the first segment
            already exists or cannot be written.
    """

    def __init__(
        self,
        root: str | Path,
        route: str,
        init_data: bytes,
        *,
        first_segment: int = 0,
        open_sink: Callable[[Path], LogSink] = GrowingLogWriter,
    ) -> None:
        self._root = Path(root)
        self._route = _checked_route(self._root, route)
        self._init_data = init_data
        self._open_sink = open_sink
        event = _read(self._root / route, init_data)
        if member_name(event) != "initData":
            raise LogError(
                f"{self._root / route}: expected an initData Event to begin with, got "
                f"{member_name(event)}; make one with init_data_event"
            )
        self._now_ns: int = event.logMonoTime
        self._counters: dict[str, int] = {}
        self._waiting: list[bytes] = []
        self._start_ns: int | None = None
        self._last_frame_ns: int | None = None
        self._encoders: set[str] = set()
        self._rolled: set[str] = set()
        self._video_segment: int | None = None
        self._segment: _Segment | None = None
        self._number = first_segment
        self._open_segment()

    @property
    def directory(self) -> Path:
        """The directory of the current segment, or of the last one once closed."""
        return self._root / f"{self._route}--{self._number}"

    def write(self, data: bytes) -> None:
        """Append the bytes of one Event to the segment it belongs to.

        Raises LogError if `data` is not an Event, the writer is closed, or the disk is full. In the
        last case the sinks decide how much is kept.
        """
        self._opened()
        event = _read(self.directory, data)
        member = member_name(event)
        self._now_ns = event.logMonoTime
        if self._start_ns is None:
            self._start_ns = self._now_ns
        if member in _ENCODE_INDICES and self._belongs_later(member, event):
            self._waiting.append(data)
            if self._rolled >= self._encoders or len(self._waiting) > _MAX_WAITING * len(
                _ENCODE_INDICES
            ):
                self.rotate()
            return
        if self._is_over():
            self.rotate()
        self._put(member, data)

    def rotate(self) -> None:
        """Begin the next segment; raise LogError if the writer is closed or the disk is full."""
        self._end(self._sentinel("endOfSegment"))
        self._number += 1
        waiting, self._waiting = self._waiting, []
        if self._video_segment is not None:
            self._video_segment += 1
        self._start_ns = self._now_ns
        self._last_frame_ns = None
        self._encoders.clear()
        self._rolled.clear()
        self._open_segment()
        for data in waiting:
            event = read_event(data)
            member = str(member_name(event))
            self._video_segment = getattr(event, member).segmentNum
            self._put(member, data)

    def close(self, signal_number: int = 0) -> None:
        """End the route; a second call does nothing. Raises LogError if the disk is full.

        `signal_number` is the signal that ended the drive, or 0.
        """
        if self._segment is None:
            return
        for data in self._waiting:
            self._segment.write(data, is_small=True)
        self._waiting.clear()
        self._end(self._sentinel("endOfRoute", signal_number))

    def discard(self) -> None:
        """Abort the current segment; its sinks decide how much of the logs is kept."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        elif issubclass(kind, KeyboardInterrupt):
            # Ctrl-C is the normal way to stop a recording, so close it properly.
            with contextlib.suppress(LogError):
                self.close(int(signal.SIGINT))
        else:
            self.discard()

    def _belongs_later(self, member: str, event: Any) -> bool:
        """Record an encoder's segment number; return whether its frame is for a later segment."""
        number = getattr(event, member).segmentNum
        if self._video_segment is None:
            self._video_segment = number
        self._encoders.add(member)
        if number > self._video_segment:
            self._rolled.add(member)
            return True
        self._last_frame_ns = self._now_ns
        return False

    def _is_over(self) -> bool:
        assert self._start_ns is not None
        age_ns = self._now_ns - self._start_ns
        if age_ns < SEGMENT_NS:
            return False
        last_ns = self._last_frame_ns
        return age_ns >= _LONGEST_NS or last_ns is None or self._now_ns - last_ns >= _QUIET_NS

    def _put(self, member: str | None, data: bytes) -> None:
        self._opened().write(data, is_small=self._is_small(member))

    def _is_small(self, member: str | None) -> bool:
        """Count an Event; return whether the small log gets it. Segments do not reset the count."""
        if member in _ENCODE_INDICES:
            return True
        service = None if member is None else service_of_member(member)
        if service is None or service.decimation is None:
            return False
        count = self._counters.get(service.name, 0)
        self._counters[service.name] = count + 1
        return count % service.decimation == 0

    def _opened(self) -> "_Segment":
        if self._segment is None:
            raise LogError(f"{self.directory}: expected an open log, got a closed one")
        return self._segment

    def _open_segment(self) -> None:
        self._segment = _Segment(self.directory, self._open_sink)
        start = "startOfRoute" if self._number == 0 else "startOfSegment"
        for data in (self._init_data, self._sentinel(start)):
            self._segment.write(data, is_small=True)

    def _end(self, sentinel: bytes) -> None:
        segment = self._opened()
        try:
            segment.write(sentinel, is_small=True)
            segment.close()
        except LogError:
            segment.discard()
            raise
        finally:
            self._segment = None

    def _sentinel(self, kind: str, signal_number: int = 0) -> bytes:
        event = new_event("sentinel", mono_time_ns=self._now_ns, valid=True)
        event.sentinel.type = kind
        event.sentinel.signal = signal_number
        return bytes(event.to_bytes())


class _Segment:
    """The two logs of one segment and their lock file."""

    def __init__(self, directory: Path, open_sink: Callable[[Path], LogSink]) -> None:
        self._directory = directory
        self._lock = directory / "rlog.lock"
        self._sinks: list[LogSink] = []
        try:
            directory.mkdir(parents=True)
            self._lock.touch()
            for name in ("rlog.zst", "qlog.zst"):
                self._sinks.append(open_sink(directory / name))
        except OSError as error:
            raise LogError(
                f"{directory}: expected to create it, got {error.strerror}; choose another route"
            ) from error
        except BaseException:
            self.discard()
            raise

    def write(self, data: bytes, *, is_small: bool) -> None:
        for sink in self._sinks if is_small else self._sinks[:1]:
            sink.write(data)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        self._lock.unlink(missing_ok=True)

    def discard(self) -> None:
        for sink in self._sinks:
            sink.discard()
        with contextlib.suppress(OSError):
            self._lock.unlink(missing_ok=True)
            # Succeeds only if the sinks have left no files.
            self._directory.rmdir()


def init_data_event(
    *, mono_time_ns: int, wall_time_ns: int, version: str, device_type: str = "pc"
) -> bytes:
    """Return the initData Event that begins a log.

    `wall_time_ns` is UTC, ns since 1970. `version` is that of the recording program. `device_type`
    is an `InitData.DeviceType`; "tici", "tizi" and "mici" determine the camera intrinsics.
    """
    event = new_event("initData", mono_time_ns=mono_time_ns, valid=True)
    event.initData.deviceType = device_type
    event.initData.version = version
    event.initData.wallTimeNanos = wall_time_ns
    return bytes(event.to_bytes())


def _checked_route(root: Path, route: str) -> str:
    if not route or "/" in route or "\0" in route or route in {".", ".."}:
        raise LogError(
            f"{root}: expected the name of a route, got {route!r}; directories are named after it"
        )
    return route


def _read(where: Path, data: bytes) -> Any:
    try:
        return read_event(data)
    except MessageError as error:
        raise LogError(f"{where}: {error}") from error
