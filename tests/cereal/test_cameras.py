"""Camera servers: an address chooses one of three kinds, and all three do the same."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cereal.cameras import CameraServer, RingCameras, open_cameras
from cereal.errors import FrameError
from cereal.frames import Frame, FrameFormat, FrameRingWriter
from cereal.stacks import DEFAULT_STACK, STACKS
from cereal.transport import MsgqTransport, Publisher, ZmqTransport
from cereal.visionipc import VisionIpcCameras, VisionIpcReader, VisionIpcServer
from tests.cereal.shared import SMALL, own_rings
from tests.cereal.vision import LONG_MS

STREAMS = ("road", "driver")
Send = Callable[[str, int], None]


def ring_cameras(place: Path, resources: ExitStack) -> tuple[CameraServer, Send]:
    rings = {name: FrameRingWriter("cams", name, SMALL, directory=place) for name in STREAMS}
    for ring in rings.values():
        resources.callback(ring.close)

    def send(stream: str, frame_id: int) -> None:
        rings[stream].next_buffer()[:] = frame_id
        rings[stream].publish(frame_id, 3, 4)

    return RingCameras("cams", directory=place), send


def vision_cameras(place: Path, resources: ExitStack) -> tuple[CameraServer, Send]:
    bus = ZmqTransport(f"ipc://{place}")
    resources.callback(bus.close)
    server = resources.enter_context(VisionIpcServer("cams", bus, directory=place))
    for name in STREAMS:
        server.create_buffers(name, 4, SMALL)
    server.start()

    def send(stream: str, frame_id: int) -> None:
        server.next_buffer(stream)[:] = frame_id
        server.send(stream, frame_id, 3, 4)

    return VisionIpcCameras("cams", ZmqTransport(f"ipc://{place}"), directory=place), send


@pytest.mark.parametrize("make", [ring_cameras, vision_cameras])
def test_both_kinds_do_the_same(
    tmp_path: Path, make: Callable[[Path, ExitStack], tuple[CameraServer, Send]]
) -> None:
    with ExitStack() as resources:
        cameras, send = make(tmp_path, resources)
        resources.callback(cameras.close)
        assert cameras.available_streams() == {"road", "driver"}
        assert cameras.unusable_streams() == {}
        with pytest.raises(FrameError, match="wideRoad"):
            cameras.reader("wideRoad", conflate=True)
        with pytest.raises(FrameError, match="expected"):
            cameras.reader("rear", conflate=True)
        readers = {stream: cameras.reader(stream, conflate=False) for stream in STREAMS}
        for stream, reader in readers.items():
            resources.callback(reader.close)
            assert reader.format == SMALL
            first = None
            while first is None:  # a socket of ZeroMQ takes a moment to connect
                send(stream, 1)
                first = reader.receive(20)
            send(stream, 9)
            frame = reader.receive(LONG_MS)
            while frame is not None and frame.frame_id == 1:
                frame = reader.receive(LONG_MS)
            assert frame is not None
            assert (frame.frame_id, frame.timestamp_sof_ns, frame.timestamp_eof_ns) == (9, 3, 4)
            assert (frame.data == 9).all()
            assert reader.is_intact()


@pytest.mark.parametrize(
    ("address", "kind", "name"),
    [
        ("camerad", RingCameras, "camerad"),
        ("visionipc:camerad", VisionIpcCameras, "visionipc:camerad"),
        ("visionipc:cams-2", VisionIpcCameras, "visionipc:cams-2"),
        ("visionipc+zmq:navd", VisionIpcCameras, "visionipc+zmq:navd"),
    ],
)
def test_an_address_chooses(address: str, kind: type, name: str) -> None:
    cameras = open_cameras(address, DEFAULT_STACK, prefix=f"none{os.getpid()}")
    assert type(cameras) is kind
    assert cameras.name == name
    cameras.close()


@pytest.mark.parametrize(
    "address",
    [
        "",
        "a/b",
        ":a",
        "visionipc:",
        "visionipc:a/b",
        "visionipc:a:b",
        "msgq:a",
        "visionipc+zmq:cams",
    ],
)
def test_another_address_is_refused(address: str) -> None:
    with pytest.raises(FrameError, match="cameras: expected"):
        open_cameras(address, DEFAULT_STACK)


# --- between processes, packets on rings of messages ------------------------------------------

SERVER = """
import sys, time
from cereal.frames import FrameFormat
from cereal.msgq import wake
from cereal.stacks import STACKS
from cereal.transport import MsgqTransport
from cereal.visionipc import VisionIpcServer
prefix, stack, form, count = sys.argv[1], STACKS[sys.argv[2]], eval(sys.argv[3]), int(sys.argv[4])
wake.block()
bus = MsgqTransport(stack=stack, prefix=prefix)
server = VisionIpcServer("camerad", bus, stack=stack, prefix=prefix)
server.create_buffers("road", count, form)
server.start()
for frame_id in range(1_000_000):
    server.next_buffer("road")[:] = frame_id % 251
    server.send("road", frame_id, frame_id * 50_000_000, frame_id * 50_000_000 + 10)
    time.sleep(0.02)
"""
WHOLE = FrameFormat(1928, 1208, 2048, 2490368, 4804608)


@pytest.fixture(params=["openpilot-2025", "openpilot-2026"])
def stack_prefix(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A stack, and the prefix of a directory for its rings."""
    with own_rings(STACKS[request.param]) as prefix:
        yield request.param, prefix
        # As of any server that was killed.
        Path(f"/tmp/{prefix}_visionipc_camerad").unlink(missing_ok=True)  # noqa: S108


def whole(reader: VisionIpcReader) -> Frame:
    """The next frame that was not overwritten while it was looked at, as it may be at any time."""
    while True:
        frame = reader.receive(LONG_MS)
        assert frame is not None
        same = (frame.data == frame.frame_id % 251).all()
        if reader.is_intact():
            assert same
            return frame


def test_a_killed_server_is_followed_by_one_of_another_size(stack_prefix: tuple[str, str]) -> None:
    stack, prefix = stack_prefix

    def serve(form: FrameFormat, count: int) -> subprocess.Popen[bytes]:
        arguments = [prefix, stack, repr(form), str(count)]
        return subprocess.Popen([sys.executable, "-c", SERVER, *arguments])

    cameras = open_cameras("visionipc:camerad", STACKS[stack], prefix=prefix)
    reader: VisionIpcReader | None = None
    before = None
    for form, count in ((WHOLE, 18), (SMALL, 4)):
        with serve(form, count) as process:
            while "road" not in cameras.available_streams():
                assert process.poll() is None
            if reader is None:
                found = cameras.reader("road", conflate=True)
                assert isinstance(found, VisionIpcReader)
                reader = found
            # Of the one before, which waited to be received, too.
            frame = whole(reader)
            while frame.format != form:
                frame = whole(reader)
            for _ in range(5):
                after = whole(reader)
                assert after.frame_id > frame.frame_id
                assert after.format == reader.format == form
                frame = after
            process.send_signal(signal.SIGKILL)
        assert cameras.available_streams() == set()
        assert cameras.unusable_streams() == {}
        before = before or frame
    assert reader is not None
    reader.close()
    cameras.close()
    # What was handed out outlives server, reader and all.
    assert before is not None
    assert before.format == WHOLE
    assert len(set(before.data[::4096])) == 1


def test_who_waits_for_one_camera_misses_nothing_of_the_other(
    stack_prefix: tuple[str, str],
) -> None:
    """A writer that begins forgets its readers, also one that nobody looks at meanwhile."""
    stack, prefix = STACKS[stack_prefix[0]], stack_prefix[1]
    with ExitStack() as opened:
        bus, first, second = (MsgqTransport(stack=stack, prefix=prefix) for _ in range(3))
        for one in (bus, first, second):
            opened.callback(one.close)
        road, wide = (bus.subscriber(f"visionipc_camerad_{number}") for number in (0, 2))
        assert [road.receive(0), wide.receive(0)] == [None, None]
        before = first.publisher("visionipc_camerad_2")
        assert wide.receive(0) is None
        before.close()
        made: list[Publisher] = []
        again = threading.Timer(0.02, lambda: made.append(second.publisher("visionipc_camerad_2")))
        again.start()
        assert road.receive(500) is None
        again.join()
        made[0].send(b"frame")
        assert wide.receive(0) == b"frame"
