"""Rows about a bus on which nothing is right: hostile messages, and rings that hold nonsense.

The camera goes as fast as the daemon: the next frame comes when the one before has its messages, so
that the daemon looks at each message and each state of a ring, one of each service with a frame.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cereal.frames import FrameRingWriter
from cereal.msgq import wake
from cereal.msgq.ring import WRITE_UID, RingWriter
from cereal.msgq.ring_memory import RingMemory
from cereal.schema import read_event
from cereal.stacks import DEFAULT_STACK
from cereal.transport import MsgqTransport, Subscriber, Transport, ZmqTransport
from modeld.vehicle.inputs import SUBSCRIPTIONS
from tests.cereal.shared import own_rings
from tests.faults.cameras import PERIOD_NS, READOUT_NS, STREAMS
from tests.faults.table import Row
from tests.modeld.daemon_process import DEADLINE_S, DaemonProcess
from tests.modeld.fake_program import SMALL
from tests.support.hostile import HostileMessages, own_memory_mib, ruin
from tests.tools.tiny_driving import write_tiny_driving

pytestmark = [pytest.mark.opencl, pytest.mark.alone, pytest.mark.slow]
MESSAGES, STATES = 100_000, 20_000
# Of memory in the second half: a kept message of 100 bytes each would be 1.2 MiB alone.
MOST_GROWTH_MIB = 4.0
LARGEST_BYTES = 64 << 20


class Drive:
    """A daemon and its cameras, which wait for it."""

    def __init__(self, process: DaemonProcess, transport: Transport, camera: str) -> None:
        self.process = process
        self.frame_id = self.answered = 0
        self._begin_ns = time.monotonic_ns()
        self._models = transport.subscriber("modelV2")
        self._health: Subscriber = transport.subscriber("modeldHealth", conflate=True)
        self._rings = [FrameRingWriter(camera, stream, SMALL, 8) for stream in STREAMS]

    def frame(self, timeout_ms: int = 2000) -> None:
        """Send a frame of each camera, and wait for what the model says of it."""
        self.frame_id += 1
        end_ns = self._begin_ns + self.frame_id * PERIOD_NS
        for ring in self._rings:
            ring.next_buffer()[...] = 32 + self.frame_id % 64
            ring.publish(self.frame_id, end_ns - READOUT_NS, end_ns)
        while (data := self._models.receive(timeout_ms)) is not None:
            model = read_event(data).modelV2
            assert (len(model.position.x), len(model.laneLines)) == (33, 4)
            if model.frameId == self.frame_id:
                self.answered += 1
                return

    def rejected(self) -> int:
        """Return how many messages the daemon has rejected, as its health message says."""
        self._health.receive()  # of a moment ago
        data = None
        deadline = time.monotonic() + DEADLINE_S
        while data is None and time.monotonic() < deadline:
            self.frame()
            data = self._health.receive()
        assert data is not None, self.process.text()
        faults: Any = read_event(data).modeldHealth.faults
        return int(next(fault.count for fault in faults if fault.name == "messageRejected"))

    def check(self, frames: int, resident: list[float]) -> None:
        """It lives, has answered nearly all, and its memory has not grown."""
        text = self.process.text()
        assert self.process.life.code is None, text
        assert not self.process.lines("Traceback"), text
        assert self.answered >= 0.98 * frames, text
        assert resident[-1] - resident[len(resident) // 2] < MOST_GROWTH_MIB, resident

    def close(self) -> None:
        for ring in self._rings:
            ring.close()


@contextmanager
def driving(directory: Path, transport: Transport, prefix: str = "") -> Iterator[Drive]:
    model = write_tiny_driving(directory / "tiny.pkl", (64, 32))
    camera = f"hostile_{os.getpid()}"
    with ExitStack() as stack:
        options = ("--model", str(model), "--demo", "--camera-server", camera)
        drive_of = DaemonProcess(directory, *options, prefix=prefix)
        drive = Drive(drive_of, transport, camera)
        stack.callback(drive_of.close)
        stack.callback(drive.close)
        drive_of.wait_for("running")
        for _ in range(300):
            drive.frame()
        yield drive


@pytest.fixture
def prefix(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of rings; the clock of the cameras is another than the daemon's."""
    monkeypatch.setenv("SIMULATION", "1")
    with own_rings() as made:
        yield made


def _run(drive: Drive, rounds: int, before: Callable[[int], object]) -> None:
    """Drive so many frames, each after something hostile, and check."""
    first, resident = drive.answered, list[float]()
    for number in range(rounds):
        before(number)
        drive.frame()
        if number % (rounds // 20) == 0:
            resident.append(own_memory_mib(drive.process.pid))
    drive.answered -= first
    drive.check(rounds, resident)


@pytest.mark.parametrize("bus", ["msgq", "ipc"])
def test_hostile_messages(bus: str, prefix: str, tmp_path: Path, row: Row) -> None:
    transport: Transport = MsgqTransport(prefix=prefix)
    if bus == "ipc":
        (tmp_path / "bus").mkdir()
        transport = ZmqTransport(f"ipc://{tmp_path}/bus")
    hostile = HostileMessages(2, SUBSCRIPTIONS, smallest=int(bus == "msgq"))
    with closing(transport):
        publishers = {name: transport.publisher(name) for name in SUBSCRIPTIONS}
        with driving(tmp_path, transport, prefix if bus == "msgq" else "") as drive:
            rounds = MESSAGES // len(SUBSCRIPTIONS)
            start_ns = time.monotonic_ns()

            def send(number: int) -> None:
                for name, publisher in publishers.items():
                    publisher.send(hostile.next(name))
                if bus == "ipc" and number % (rounds // 4) == 1:
                    # Sound, but for its size, and beyond what is a message at all.
                    publishers["carState"].send(hostile.next("carState") + bytes(LARGEST_BYTES))
                    time.sleep(0.2)  # which is on its way for longer than a frame

            _run(drive, rounds, send)
            looked_at = rounds * len(SUBSCRIPTIONS)
            assert looked_at // 3 < drive.rejected() <= looked_at
            for pattern in row.logged:
                for name in SUBSCRIPTIONS:
                    drive.process.wait_line(f"{name}: {pattern}", start_ns)


def test_hostile_rings(prefix: str, tmp_path: Path, row: Row) -> None:
    """Each state is looked at with a frame; then a message follows, which is heard."""
    numbers = random.Random(3)  # noqa: S311 - a repeatable choice
    hostile = HostileMessages(3, SUBSCRIPTIONS, smallest=1)
    with closing(MsgqTransport(prefix=prefix)) as transport:
        for name in SUBSCRIPTIONS:
            transport.subscriber(name).close()  # which makes the rings
        with driving(tmp_path, transport, prefix) as drive, ExitStack() as stack:
            start_ns = time.monotonic_ns()
            rings = {
                name: stack.enter_context(closing(RingMemory(_path(name, prefix), 1 << 20)))
                for name in SUBSCRIPTIONS
            }
            # Nobody is woken by these: in such a ring any number may stand for a thread.
            writers = {name: RingWriter(ring, wake.new_uid()) for name, ring in rings.items()}

            def write(_number: int) -> None:
                for ring in rings.values():
                    ruin(ring, numbers)
                for name, writer in writers.items():
                    if numbers.random() < 0.2:
                        # Into all that nonsense, as its writer is still there.
                        rings[name].words[WRITE_UID] = writer.uid
                        assert writer.send(hostile.next(name))

            _run(drive, STATES // len(SUBSCRIPTIONS), write)
            for pattern in row.logged:
                drive.process.wait_line(pattern, start_ns)
            before = drive.rejected()
            for _ in range(100):
                for name, writer in writers.items():
                    rings[name].words[WRITE_UID] = writer.uid
                    assert writer.send(b"no message")
                drive.frame()
            # All are heard again, from the second message on at the latest.
            assert drive.rejected() - before > 95 * len(SUBSCRIPTIONS)


def _path(name: str, prefix: str) -> Path:
    return DEFAULT_STACK.queue_path(name, prefix)
