"""Transport between processes of one machine: msgq rings in shared memory, as in openpilot.

This module makes a transport of the ring's reader and writer in `cereal.msgq`. See
docs/formats/bus.md#rings-of-messages for the files, their layout and who may use them.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from cereal.access import name_of_process
from cereal.errors import MessageSizeError, TransportError
from cereal.msgq import wake
from cereal.msgq.ring import WRITE_UID, RingReader, RingWriter, largest_message, thread_of
from cereal.msgq.ring_memory import RingMemory
from cereal.stacks import DEFAULT_STACK, Stack
from cereal.transport.base import Subscriber

logger = logging.getLogger(__name__)


class Gate(Protocol):
    """Holds receives back until a test harness permits them; see `cereal.lock_step`."""

    @property
    def is_enabled(self) -> bool:
        """Whether it holds the next receive back."""

    def pass_through(self) -> None:
        """Announce a receive, and wait for permission."""


Gates = Callable[[str], Gate | None]
_End = TypeVar("_End", "MsgqPublisher", "MsgqSubscriber")


class MsgqTransport:
    """A transport whose publishers write rings and whose subscribers read them, in any order.

    Args:
        stack: The stack whose names, files and ring sizes are used.
        prefix: OPENPILOT_PREFIX of the stack.
        gates: Returns the gate of an endpoint; None: no receive is held back.
        by_signal: Whether writers wake subscribers by signal; None: unless another library uses it.
    """

    def __init__(
        self,
        *,
        stack: Stack = DEFAULT_STACK,
        prefix: str = "",
        gates: Gates | None = None,
        by_signal: bool | None = None,
    ) -> None:
        self._stack = stack
        self._prefix = prefix
        self._gates = gates
        self._waiter = wake.Waiter(by_signal=by_signal)
        self._open: list[MsgqPublisher | MsgqSubscriber] = []
        self._logged: Mapping[str, str] = {}

    def publisher(self, service: str) -> "MsgqPublisher":
        """Become the writer of the ring of `service`.

        Raises TransportError if the ring has a living writer or cannot be used.
        """
        return self._keep(MsgqPublisher(service, lambda: self._unwritten_ring(service)))

    def subscriber(self, service: str, *, conflate: bool = False) -> "MsgqSubscriber":
        """Become a reader of the ring of `service` from now on; raise TransportError on failure."""
        gate = None if self._gates is None else self._gates(service)
        end = MsgqSubscriber(
            service,
            lambda: self._ring(service),
            self._waiter,
            self._keep_places,
            conflate=conflate,
            gate=gate,
        )
        return self._keep(end)

    def wait(self, subscribers: Sequence[Subscriber], timeout_ms: int) -> Sequence[Subscriber]:
        """Wait until one of `subscribers` has a message; return those that have one."""
        ends = [end for end in subscribers if isinstance(end, MsgqSubscriber) and end.is_open]
        if self._gates is not None:
            # Each subscriber must be received from, so that it reaches its gate.
            return ends
        ready = [end for end in ends if end.has_message()]
        if ready or timeout_ms <= 0:
            return ready
        deadline_s = time.monotonic() + timeout_ms * 1e-3
        # Only a waiting thread is woken, so polling once a frame causes no signals.
        thread = self._waiter.thread()
        for end in ends:
            end.set_woken_thread(thread)
        return self._waiter.wait(
            lambda: [end for end in ends if end.has_message()], self._keep_places, deadline_s
        )

    def refused(self) -> Mapping[str, str]:
        """Return the reason, in one line, for each subscribed service whose ring is corrupt.

        Also checks whether ring files were replaced; publishers and subscribers then open the new
        file at their next use. Can be called from another thread than the receiving one.
        """
        reasons = {}
        for end in tuple(self._open):
            end.look()
            if isinstance(end, MsgqSubscriber) and end.damaged:
                reasons[end.service] = (
                    f"msgq transport, {end.service}: expected messages in {end.path}, found what "
                    f"no publisher writes, {end.damaged} times; restart its publisher"
                )
        return reasons

    def log_refused(self) -> None:
        """Log the reasons that `refused` returns, each once until it changes."""
        found = self.refused()
        for service, reason in found.items():
            if self._logged.get(service) != reason:
                logger.warning("%s", reason)
        self._logged = found

    def close(self) -> None:
        """Release all slots. The ring files stay."""
        for end in self._open:
            end.close()
        self._open.clear()
        self._waiter.close()

    def _keep_places(self) -> None:
        """Register the calling thread's waiting subscribers again if their writer was restarted.

        A new writer does not know the readers. A subscriber that does not check its slot while
        another one waits would miss the first messages.
        """
        thread = threading.get_ident()
        for end in self._open:
            if isinstance(end, MsgqSubscriber) and end.is_open and end.receiver == thread:
                end.has_message()

    def _keep(self, end: _End) -> _End:
        # Drop closed ends, so that the list stays bounded.
        self._open = [one for one in self._open if one.is_open]
        self._open.append(end)
        return end

    def _unwritten_ring(self, service: str) -> RingMemory:
        memory = self._ring(service, reserve=True)
        if holder := _living_writer(memory):
            memory.close()
            raise TransportError(
                f"msgq transport, {service}: expected to be the only publisher, found {holder}; "
                "stop it, a process of the stack with BLOCK=NAME in its environment"
            )
        return memory

    def _ring(self, service: str, *, reserve: bool = False) -> RingMemory:
        stack = self._stack
        path = stack.queue_path(service, self._prefix)
        return RingMemory(path, stack.queue_bytes(service), reserve=reserve)


class MsgqPublisher:
    """Sending end of a service: the writer of its ring."""

    def __init__(self, service: str, open_ring: Callable[[], RingMemory]) -> None:
        self._service = service
        self._open_ring = open_ring
        self._waker = wake.Waker()
        self._pid = os.getpid()
        self._is_replaced = False
        self._memory: RingMemory | None = open_ring()
        self._writer = self._claim(self._memory)

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed."""
        return self._memory is not None

    def send(self, data: bytes) -> None:
        """Write `data` into the ring; a reader that is a whole ring behind loses messages.

        Raises:
            MessageSizeError: the message is empty or too large for the ring.
            TransportError: another publisher has taken the ring, or its replaced file; the process
                was forked, or the publisher is closed.
        """
        if self._is_replaced:
            self._reopen()
        writer = self._writer
        is_open = self._memory is not None and os.getpid() == self._pid
        if not is_open or not writer.send(data):
            raise self._refusal(len(data))
        self._waker.wake(writer.readers())

    def has_readers(self) -> bool:
        """Return whether the ring has a reader whose thread is still running."""
        if self._is_replaced:
            # New readers open the new file.
            self._reopen()
        return self._memory is not None and any(self._waker.living(self._writer.readers()))

    def is_read(self) -> bool:
        """Return whether there are readers, and all living ones have received every message."""
        if self._memory is None:
            return False
        living = self._waker.living(self._writer.readers())
        return any(living) and all(
            self._writer.is_read_by(slot) for slot, lives in enumerate(living) if lives
        )

    def look(self) -> None:
        """Check whether the file was replaced; if so, the next message goes to the new one."""
        self._is_replaced = self._memory is not None and not self._memory.is_current()

    def close(self) -> None:
        """Release the ring for another publisher."""
        if self._memory is not None:
            self._writer.close()
            memory, self._memory = self._memory, None
            memory.close()

    def _claim(self, memory: RingMemory) -> RingWriter:
        writer = RingWriter(memory, wake.new_uid(wake.this_thread()))
        before = writer.readers()
        writer.claim()
        # They have lost their slots. The sooner they notice, the fewer messages they miss.
        self._waker.wake(before)
        return writer

    def _reopen(self) -> None:
        self._is_replaced = False
        if self._memory is not None:
            memory = self._open_ring()
            self._memory.close()
            self._memory, self._writer = memory, self._claim(memory)

    def _refusal(self, count: int) -> TransportError:
        where = f"msgq transport, {self._service}"
        if self._memory is None:
            return TransportError(f"{where}: expected an open publisher, got a closed one")
        if os.getpid() != self._pid:
            return TransportError(
                f"{where}: expected to send from process {self._pid}, got {os.getpid()}; open a "
                "transport in the new process"
            )
        if not self._writer.is_owner():
            holder = _living_writer(self._memory) or "another publisher"
            return TransportError(
                f"{where}: expected to be the only publisher, but {holder} has taken the ring; "
                "stop one of the two"
            )
        return MessageSizeError(
            f"{where}: expected a message of 1 to {largest_message(self._memory.size)} bytes, got "
            f"{count}; {self._memory.path} has {self._memory.size} bytes"
        )


class MsgqSubscriber:
    """Receiving end of a service: a reader of its ring.

    `receiver` is the ID of the thread that received last; 0 before the first receive.
    """

    def __init__(
        self,
        service: str,
        open_ring: Callable[[], RingMemory],
        waiter: wake.Waiter,
        keep_places: Callable[[], None],
        *,
        conflate: bool,
        gate: Gate | None,
    ) -> None:
        self.service = service
        self.is_open = True
        self.receiver = 0
        self._open_ring = open_ring
        self._waiter = waiter
        self._keep_places = keep_places
        self._gate = gate
        self._thread = 0
        self._is_replaced = False
        self._memory = open_ring()
        self._reader = RingReader(self._memory, wake.new_uid(), conflate=conflate)
        self._reader.register()

    @property
    def path(self) -> str:
        """The file of the ring."""
        return str(self._memory.path)

    @property
    def lost(self) -> int:
        """How many times the writer has overtaken this reader."""
        return self._reader.lost

    @property
    def damaged(self) -> int:
        """How many times the ring held data that no writer produces."""
        return self._reader.damaged

    def receive(self, timeout_ms: int = 0) -> bytes | None:
        """Return the next message; None after `timeout_ms` or if closed."""
        if not self.is_open:
            return None
        gate = self._gate
        if gate is not None and gate.is_enabled:
            gate.pass_through()
        if self._is_replaced:
            self._reopen()
        self.receiver = threading.get_ident()
        data = self._reader.receive()
        if data is not None or timeout_ms <= 0:
            return data
        deadline_s = time.monotonic() + timeout_ms * 1e-3
        self.set_woken_thread(self._waiter.thread())
        return self._waiter.wait(self._reader.receive, self._keep_places, deadline_s)

    def has_message(self) -> bool:
        """Return whether a receive would find something, usually a message."""
        if self._is_replaced:
            self._reopen()
        return self._reader.is_waiting()

    def set_woken_thread(self, thread: int) -> None:
        """Set the thread for writers to wake."""
        if thread != self._thread:
            self._thread = thread
            self._reader.rename(wake.new_uid(thread))

    def look(self) -> None:
        """Check whether the file was replaced; if so, the next receive uses the new one."""
        self._is_replaced = self.is_open and not self._memory.is_current()

    def close(self) -> None:
        """Release the slot in the ring."""
        if self.is_open:
            self.is_open = False
            self._reader.close()
            self._memory.close()

    def _reopen(self) -> None:
        self._is_replaced = False
        old = self._memory
        # A stack removes its directory when it ends. The next check finds whether it is back.
        with suppress(TransportError):
            self._memory = self._reader.memory = self._open_ring()
            self._reader.register()
            old.close()


def _living_writer(memory: RingMemory) -> str | None:
    """Return the writer of a ring, such as "process 4711 (modeld)"; None if none is known.

    Only a process that has mapped the ring counts, because the ID of an ended thread may be reused
    by another program.
    """
    thread = thread_of(memory.words[WRITE_UID])
    if thread and wake.has_mapped(thread, memory.path):
        return name_of_process(thread)
    return None
