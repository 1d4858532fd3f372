"""Lock step: lets a test harness control each receive, as openpilot's process_replay does.

The harness creates two events for an endpoint, sets CEREAL_FAKE and starts the process. Each
receive from that endpoint sets the first event and waits for the second, so the harness decides
which messages belong to which step. Adding 1 to an eventfd or writing a byte into a FIFO sets an
event; reading everything clears it. The events are described in a state file, of which there are
two generations (P is OPENPILOT_PREFIX, F is CEREAL_FAKE_PREFIX):

    eventfds  /dev/shm/[P/]cereal_events/[F/]ENDPOINT, "msgq_" before [P/] since December 2025:
              { int32 called, ready; bool enabled }, inherited file descriptors
    FIFOs     /dev/shm/msgq_HASH since May 2026: { char called[128], ready[128]; bool enabled },
              HASH: FNV-1a 64 of P, 0x1f, F, 0x1f and ENDPOINT, as 16 hexadecimal digits
"""

import os
import select
import stat
import struct
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cereal.errors import TransportError
from cereal.services import fnv1a64

__all__ = ["Gate", "gates_of"]

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 -- memory shared with the harness
# Interval at which a receive held back by the harness checks whether the process should stop.
_SLICE_MS: Final = 50
# Default capacity of a FIFO, so that one read clears every event.
_FIFO_BYTES: Final = 65536
_PATH_BYTES: Final = 128


def gates_of(
    fake_prefix: str,
    prefix: str = "",
    *,
    is_stopped: Callable[[], bool] = lambda: False,
    directory: Path = SHARED_MEMORY,
) -> "Callable[[str], Gate | None]":
    """Return a function from an endpoint to its gate, or None if no harness has events for it.

    The function raises TransportError if the events exist but cannot be used. `fake_prefix` is the
    value of CEREAL_FAKE_PREFIX, the harness's name for this process, and `prefix` that of
    OPENPILOT_PREFIX. A waiting receive continues without permission once `is_stopped` returns true.
    """

    def gate_of(endpoint: str) -> Gate | None:
        gates: list[Gate] = []
        for path, kind in _places(endpoint, prefix, fake_prefix, directory):
            with suppress(FileNotFoundError):
                gates.append(Gate(path, kind, is_stopped))
        in_force = [gate for gate in gates if gate.is_enabled]
        if len(in_force) > 1:
            raise TransportError(
                f"lock step of {endpoint}: expected one harness, found {in_force[0].path} and "
                f"{in_force[1].path}; remove what an earlier one has left"
            )
        for gate in in_force:
            # Report unusable events now, not in the middle of a drive.
            gate.open()
        return next(iter(in_force or gates), None)

    return gate_of


class Gate:
    """The gate that each receive from one endpoint passes through. Not thread-safe.

    Raises:
        FileNotFoundError: There is no state file at `path`.
        TransportError: It cannot be read, or is shorter than its generation requires.
    """

    def __init__(self, path: Path, kind: "_Generation", is_stopped: Callable[[], bool]) -> None:
        self.path = path
        self._kind = kind
        self._is_stopped = is_stopped
        self._events: tuple[int, int] | None = None
        try:
            self._state = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise TransportError(
                f"{path}: cannot be opened: {error.strerror}; the harness must run as the same user"
            ) from error
        weakref.finalize(self, os.close, self._state)
        self._read()

    @property
    def is_enabled(self) -> bool:
        """Whether the harness holds the next receive; raises TransportError if that is unknown."""
        return self._read()[self._kind.enabled_at] != 0

    def open(self) -> None:
        """Open the two events, which the first receive would otherwise do.

        Raises TransportError if they are not the kind of events that the generation uses.
        """
        if self._events is None:
            self._events = called, ready = self._kind.events(self.path, self._read())
            if self._kind.owns_events:
                for event in (called, ready):
                    weakref.finalize(self, os.close, event)

    def pass_through(self) -> None:
        """Announce a receive; wait until the harness permits it or the process has to stop.

        Raises TransportError if the events cannot be used.
        """
        self.open()
        assert self._events is not None
        called, ready = self._events
        try:
            # A full FIFO or eventfd is already set.
            with suppress(BlockingIOError):
                os.write(called, self._kind.token)
            waiting = select.poll()
            waiting.register(ready, select.POLLIN)
            while not self._is_stopped():
                if waiting.poll(_SLICE_MS):
                    with suppress(BlockingIOError):
                        os.read(ready, self._kind.read_bytes)
                    return
        except OSError as error:
            raise TransportError(
                f"{self.path}: the harness's events cannot be used: {error.strerror}; restart it"
            ) from error

    def _read(self) -> bytes:
        # Not memory-mapped: reading a file that another process truncates would kill this one.
        data = os.pread(self._state, self._kind.size, 0)
        if len(data) < self._kind.size:
            raise TransportError(
                f"{self.path}: expected {self._kind.size} bytes that describe "
                f"{self._kind.name}, found {len(data)}; remove the file and restart the harness"
            )
        return data


@dataclass(frozen=True, slots=True)
class _Generation:
    """The layout of a state file, and the kind of its events."""

    name: str  # kind of event, for error messages
    size: int  # size of the state file, bytes
    enabled_at: int  # offset of the flag, bytes
    token: bytes  # the bytes whose writing sets an event
    read_bytes: int  # size of the read that clears an event, bytes
    events: Callable[[Path, bytes], tuple[int, int]]  # returns the descriptors of both events
    owns_events: bool  # whether this process opened the events and must close them


def _inherited(path: Path, state: bytes) -> tuple[int, int]:
    """Return the inherited eventfds; raise TransportError if they are something else."""
    called, ready = struct.unpack_from("<2i", state)
    for number in (called, ready):
        try:
            found = str(Path(f"/proc/self/fd/{number}").readlink())
        except OSError:
            found = "nothing"
        if found != "anon_inode:[eventfd]":
            raise TransportError(
                f"{path}: expected the descriptor {number} to be an eventfd of the harness, found "
                f"{found}; start this process from the harness, with its descriptors"
            )
    return called, ready


def _fifos(path: Path, state: bytes) -> tuple[int, int]:
    """Open both FIFOs, without blocking."""
    names = [state[at : at + _PATH_BYTES] for at in (0, _PATH_BYTES)]
    called = _open_fifo(path, names[0])
    try:
        return called, _open_fifo(path, names[1])
    except TransportError:
        os.close(called)
        raise


def _open_fifo(path: Path, field: bytes) -> int:
    name, end, _ = field.partition(b"\0")
    shown = os.fsdecode(name)
    try:
        # Checked before opening: opening another kind of file, such as a device, can have effects.
        if name and end and stat.S_ISFIFO(os.lstat(name).st_mode):
            return os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        found = f"{shown!r}"
    except OSError as error:
        found = f"{shown!r}: {error.strerror}"
    raise TransportError(
        f"{path}: expected the path of a FIFO of the harness, found {found}; restart the harness"
    )


_EVENTFDS: Final = _Generation(
    "eventfds",
    size=12,
    enabled_at=8,
    token=struct.pack("<Q", 1),
    read_bytes=8,
    events=_inherited,
    owns_events=False,
)
_FIFOS: Final = _Generation(
    "FIFOs",
    size=2 * _PATH_BYTES + 1,
    enabled_at=2 * _PATH_BYTES,
    token=b"\1",
    read_bytes=_FIFO_BYTES,
    events=_fifos,
    owns_events=True,
)


def _places(
    endpoint: str, prefix: str, fake_prefix: str, directory: Path
) -> list[tuple[Path, _Generation]]:
    """Return where each generation keeps an endpoint's state file, newest generation first."""
    key = "\x1f".join((prefix, fake_prefix, endpoint))
    below = Path("cereal_events", fake_prefix, endpoint)
    with_msgq = f"msgq_{prefix}/{below}" if prefix else f"msgq_{below}"
    return [
        (directory / f"msgq_{fnv1a64(key.encode()):016x}", _FIFOS),
        (directory / with_msgq, _EVENTFDS),
        (directory / prefix / below, _EVENTFDS),
    ]
