"""Two cameras at 20 Hz in a thread, on real rings; each thing that can go wrong is an attribute."""

import threading
import time
from collections.abc import Mapping
from typing import Any

from cereal.frame_ring import FrameFormat
from cereal.frames import FrameRingWriter, nv12_format

PERIOD_NS = 50_000_000
READOUT_NS = 10_000_000
NORMAL = nv12_format(256, 128)
STREAMS = ("wideRoad", "road")


class Cameras:
    """The camera process of a car.

    Attributes:
        paused: streams that keep their ring and send nothing.
        repeating: whether the same frame, with its id and stamps, is sent again and again.
        offset_ns: added to the stamps of frames.
        late_ns: from the end of the exposure to when a frame is sent.
        next_id: of the next frame.
        still: whether all pictures are the same.
    """

    def __init__(self, server: str, form: FrameFormat = NORMAL, slots: int = 8) -> None:
        self.server = server
        self.slots = slots
        self.paused: set[str] = set()
        self.repeating = False
        self.offset_ns = 0
        self.late_ns = 0
        self.next_id = 1
        self.still = False
        self._lock = threading.Lock()
        self._rings: dict[str, Any] = {}
        self._last = (0, 0)
        self._stop = threading.Event()
        self.open(dict.fromkeys(STREAMS, form))
        self._thread = threading.Thread(target=self._run, name="cameras", daemon=True)
        self._thread.start()

    def open(self, forms: Mapping[str, FrameFormat]) -> None:
        """Make rings; the camera process has started again."""
        with self._lock:
            for stream, form in forms.items():
                if stream not in self._rings:
                    self._rings[stream] = FrameRingWriter(self.server, stream, form, self.slots)

    def close_rings(self, *streams: str) -> None:
        with self._lock:
            for stream in streams or tuple(self._rings):
                self._rings.pop(stream).close()

    def restart(self, form: FrameFormat = NORMAL, *, first_id: int | None = None) -> None:
        """End all streams and begin again; frame ids go on unless told."""
        self.close_rings()
        if first_id is not None:
            self.next_id = first_id
        self.open(dict.fromkeys(STREAMS, form))

    def overwrite_newest(self) -> None:
        """Begin to write over the newest frames, which somebody may be using."""
        with self._lock:
            for ring in self._rings.values():
                mapping = ring._mapping
                assert mapping is not None
                mapping.begin(mapping.head + mapping.count)

    def write_words(self, stream: str, first: int, values: list[int]) -> None:
        """Damage a ring's words from `first` on."""
        with self._lock:
            mapping = self._rings[stream]._mapping
            assert mapping is not None
            for place, value in enumerate(values, first):
                mapping.words[place] = value

    def record_word(self, stream: str) -> int:
        """Index of the first word of the newest frame's record."""
        with self._lock:
            mapping = self._rings[stream]._mapping
            assert mapping is not None
            return int(mapping._record(mapping.head))

    def reset(self) -> None:
        """Go back to two healthy cameras."""
        self.paused.clear()
        self.repeating, self.offset_ns, self.late_ns, self.still = False, 0, 0, False
        with self._lock:
            missing = [stream for stream in STREAMS if stream not in self._rings]
            others = [ring for ring in self._rings.values() if ring.format != NORMAL]
        if others:
            self.restart()
        elif missing:
            self.open(dict.fromkeys(missing, NORMAL))

    def close(self) -> None:
        """End the thread and remove the rings."""
        self._stop.set()
        self._thread.join()
        self.close_rings()

    def _run(self) -> None:
        due_ns = time.monotonic_ns()
        while not self._stop.is_set():
            end_ns = time.monotonic_ns()
            if self.late_ns:
                self._stop.wait(self.late_ns / 1e9)
            self._publish(end_ns)
            # No bursts after a hiccup of this process: the daemon would take two for one.
            due_ns = max(due_ns + PERIOD_NS, time.monotonic_ns() + PERIOD_NS * 4 // 5)
            self._stop.wait(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))

    def _publish(self, end_ns: int) -> None:
        with self._lock:
            if not self.repeating:
                self._last = (self.next_id, end_ns + self.offset_ns)
                self.next_id += 1
            frame_id, stamp_ns = self._last
            for stream in STREAMS:
                ring = self._rings.get(stream)
                if ring is None or stream in self.paused:
                    continue
                # No picture of a moving car is like the one before.
                ring.next_buffer()[...] = 64 if self.still else 32 + frame_id % 64
                ring.publish(frame_id, max(0, stamp_ns - READOUT_NS), max(0, stamp_ns))
