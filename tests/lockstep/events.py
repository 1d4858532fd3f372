"""The two events of an endpoint in each generation, as `cereal.lock_step` waits for them."""

import itertools
import os
import select
import struct
from contextlib import suppress
from pathlib import Path

from cereal.services import fnv1a64

GENERATIONS = ("eventfds-2025", "eventfds-2026", "fifos")
PATIENCE_MS = 30_000
_WAIT_MS = 100
_NUMBERS = itertools.count()


class Events:
    """The events of an endpoint; written as the harness writes them.

    Attributes:
        state: file that describes them.
        inherited: descriptors that the process must be started with.
    """

    def __init__(
        self,
        generation: str,
        endpoint: str,
        prefix: str,
        fake_prefix: str,
        shared: Path,
        fifos: Path,
    ) -> None:
        self._is_fifo = generation == "fifos"
        key = "\x1f".join((prefix, fake_prefix, endpoint)).encode()
        if self._is_fifo:
            self.state = shared / f"msgq_{fnv1a64(key):016x}"
            # Short: there is room for 127 bytes of the path.
            name = f"event{next(_NUMBERS)}"
            paths = [fifos / f"{name}.{number}" for number in (0, 1)]
            for path in paths:
                os.mkfifo(path)
            self._paths = paths
            self._called, self._ready = (os.open(path, os.O_RDWR | os.O_NONBLOCK) for path in paths)
            content = b"".join(os.fsencode(path).ljust(128, b"\0") for path in paths)
        else:
            begins = "msgq_" if generation.endswith("2026") else ""
            place = f"{begins}{prefix}/cereal_events" if prefix else f"{begins}cereal_events"
            self.state = shared / place / fake_prefix / endpoint
            self.state.parent.mkdir(parents=True, exist_ok=True)
            self._paths = []
            self._called, self._ready = (os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2))
            content = struct.pack("<2i", self._called, self._ready)
        self._enabled_at = len(content)
        # The structure ends at a multiple of its widest member.
        self.state.write_bytes(content + (b"\1" if self._is_fifo else b"\1\0\0\0"))
        self.inherited = () if self._is_fifo else (self._called, self._ready)

    def enable(self, on: bool) -> None:
        """Whether receives wait from now on."""
        with self.state.open("r+b") as file:
            file.seek(self._enabled_at)
            file.write(bytes([on]))

    def wait_called(self, timeout_ms: int = PATIENCE_MS) -> bool:
        """Wait until a receive has announced itself; False if none has."""
        return self._is_set(self._called, timeout_ms)

    def permit(self) -> None:
        """Let the announced receive go on."""
        with suppress(BlockingIOError):
            os.read(self._called, 8 if not self._is_fifo else 65536)
        os.write(self._ready, b"\1" if self._is_fifo else struct.pack("<Q", 1))

    def is_permitted(self) -> bool:
        """Whether a permission lies there that no receive has taken."""
        return self._is_set(self._ready, 0)

    def close(self) -> None:
        for descriptor in (self._called, self._ready):
            os.close(descriptor)
        for path in (*self._paths, self.state):
            path.unlink(missing_ok=True)

    @staticmethod
    def _is_set(descriptor: int, timeout_ms: int) -> bool:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        # Many short waits: a test that was paused has not been patient meanwhile.
        waits = max(1, timeout_ms // _WAIT_MS)
        return any(waiting.poll(min(timeout_ms, _WAIT_MS)) for _ in range(waits))
