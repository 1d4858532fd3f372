"""Frames through rings: in order or the newest, whole or not at all, from writer to next writer."""

import os
import resource
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cereal import frame_ring
from cereal.errors import FrameError
from cereal.frame_ring import ring_bytes
from cereal.frames import (
    DEFAULT_SLOTS,
    DIRECTORY,
    Frame,
    FrameFormat,
    FrameRingReader,
    FrameRingWriter,
    FrameSource,
    available_streams,
    nv12_unpadded,
)
from tests.cereal.shared import MS, SMALL, publish, ring_reader, ring_writer
from tests.other_user import line, process_of, tell

LONG_MS = 20_000  # what is waited where something should come sooner


def ids(reader: FrameSource) -> list[int]:
    found = []
    while (frame := reader.receive(0)) is not None:
        assert (frame.data == frame.frame_id % 251).all()
        found.append(frame.frame_id)
    return found


def received(reader: FrameSource, timeout_ms: int = LONG_MS) -> Frame:
    frame = reader.receive(timeout_ms)
    assert frame is not None
    return frame


def wait_until_asleep(thread: threading.Thread) -> None:
    state = Path(f"/proc/self/task/{thread.native_id}/stat")
    while state.read_text("ascii").rsplit(")", 1)[1].split()[0] != "S":
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("conflate", "before", "after", "expected", "lapped"),
    [
        (False, [], [7, 8, 9], [7, 8, 9], 0),
        (True, [], [1, 2, 3], [3], 0),
        # A reader begins with frames published after it.
        (True, [1, 2], [3], [3], 0),
        (False, [1, 2], [3, 4], [3, 4], 0),
        # A slow one is told what it missed; a conflating one misses nothing.
        (False, [], range(1, 11), [7, 8, 9, 10], 6),
        (False, [], range(1, 6), [2, 3, 4, 5], 1),
        (False, [], range(1, 5), [1, 2, 3, 4], 0),
        (True, [], range(1, 11), [10], 0),
        (True, [1, 2, 3], [], [], 0),
    ],
)
def test_frames_arrive_in_order_or_the_newest(
    tmp_path: Path, conflate: bool, before: list[int], after: Sequence[int], expected: list[int],
    lapped: int,
) -> None:  # fmt: skip
    writer = ring_writer(tmp_path)
    publish(writer, *before)
    reader = ring_reader(tmp_path, conflate=conflate)
    assert reader.receive(0) is None
    publish(writer, *after)
    assert ids(reader) == expected
    publish(writer, 20)
    assert ids(reader) == [20]
    assert reader.lapped == lapped


def test_a_frame_has_its_times_and_pixels_and_is_a_view(tmp_path: Path) -> None:
    form = nv12_unpadded(1928, 4)
    picture = np.arange(form.size, dtype=np.uint32).astype(np.uint8)
    writer, reader = ring_writer(tmp_path, 3, form), ring_reader(tmp_path, conflate=False)
    assert not reader.is_intact()
    writer.next_buffer()[:] = picture
    writer.publish(7, 350 * MS, 350 * MS + 10)
    publish(writer, 8)
    frame = received(reader)
    times = (frame.frame_id, frame.timestamp_sof_ns, frame.timestamp_eof_ns)
    assert times == (7, 350 * MS, 350 * MS + 10)
    assert frame.format == reader.format == form
    assert np.array_equal(frame.data, picture)
    assert not frame.data.flags.writeable
    assert frame.data.base is not None  # a view: nothing was copied
    assert reader.is_intact()


def test_frame_that_is_being_overwritten_is_not_intact(tmp_path: Path) -> None:
    writer, reader = ring_writer(tmp_path, 2), ring_reader(tmp_path, conflate=False)
    publish(writer, 1)
    received(reader)
    publish(writer, 2)
    assert reader.is_intact()
    writer.next_buffer()
    assert not reader.is_intact()


def test_half_written_frame_is_not_received(tmp_path: Path) -> None:
    writer, reader = ring_writer(tmp_path, 2), ring_reader(tmp_path, conflate=False)
    publish(writer, 1, 2)
    writer.next_buffer()[:50] = 99
    # The slot of frame 1 is the one being written; frame 2 is still there.
    assert ids(reader) == [2]
    assert reader.lapped == 1
    publish(writer, 3)
    assert ids(reader) == [3]


@pytest.mark.parametrize("conflate", [False, True])
@pytest.mark.parametrize("garbage", [1 << 32, (1 << 64) - 1])
def test_an_impossible_frame_id_counts_as_lapped(
    tmp_path: Path, garbage: int, conflate: bool
) -> None:
    writer, reader = ring_writer(tmp_path), ring_reader(tmp_path, conflate=conflate)
    publish(writer, 1)
    assert ids(reader) == [1]
    # A foreign writer's garbage: word 1 of the record of frame 2, which lies in slot 1.
    publish(writer, 2)
    words = np.memmap(tmp_path / "frames_cam_road", "<u8", "r+")
    words[24 + 8 + 1] = garbage
    assert reader.receive(0) is None
    assert reader.lapped == 1
    writer.next_buffer()[:] = 3
    writer.publish((1 << 32) - 1, 1, 2)
    assert received(reader).frame_id == (1 << 32) - 1


@pytest.mark.parametrize(("conflate", "rest"), [(False, [5, 6]), (True, [6])])
def test_a_count_may_go_back(tmp_path: Path, conflate: bool, rest: list[int]) -> None:
    """No sound writer does so: waiting until it has caught up may take for ever."""
    writer, reader = ring_writer(tmp_path, 8), ring_reader(tmp_path, conflate=conflate)
    publish(writer, *range(1, 7))
    ids(reader)
    words = np.memmap(tmp_path / "frames_cam_road", "<u8", "r+")
    words[8] = 4
    assert received(reader, 0).frame_id == 4
    words[8] = 6
    assert ids(reader) == rest
    words[8] = 0
    assert reader.receive(0) is None


@pytest.mark.parametrize("frame_id", [-1, 1 << 32, 1 << 64])
def test_a_writer_refuses_a_frame_id_of_more_than_32_bits(tmp_path: Path, frame_id: int) -> None:
    writer, reader = ring_writer(tmp_path), ring_reader(tmp_path, conflate=False)
    writer.next_buffer()[:] = 7
    with pytest.raises(FrameError, match="expected a frame id of 0 to 4294967295, got"):
        writer.publish(frame_id, 1, 2)
    assert reader.receive(0) is None
    # The buffer is still the writer's, to be published as it should be.
    writer.publish(7, 1, 2)
    assert ids(reader) == [7]
    writer.next_buffer()[:] = 0
    writer.publish(0, 1, 2)
    assert ids(reader) == [0]


@pytest.mark.parametrize("has_futex", [True, False])
def test_receive_waits_and_wakes(
    tmp_path: Path, has_futex: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of Linux' tables of system calls; the newer architectures share one.
    assert frame_ring._FUTEX_NUMBERS == {"x86_64": 202, "aarch64": 98, "riscv64": 98}
    assert frame_ring._POLL_S == 1e-3  # where the number is not known
    if not has_futex:
        monkeypatch.setattr(frame_ring, "_FUTEX_NUMBERS", {})
    writer, reader = ring_writer(tmp_path), ring_reader(tmp_path)
    started = time.monotonic()
    assert reader.receive(30) is None
    assert time.monotonic() - started > 0.029
    timer = threading.Timer(0.03, publish, [writer, 1])
    timer.start()
    assert received(reader).frame_id == 1
    timer.join()


@pytest.mark.parametrize("what", ["publish", "close"])
def test_all_sleeping_readers_are_woken(tmp_path: Path, what: str) -> None:
    """Not found by `receive`, which looks again by itself ten times a second."""
    writer = ring_writer(tmp_path)
    found: list[bool] = []
    threads = []
    for reader in (ring_reader(tmp_path), ring_reader(tmp_path)):
        wait = reader._mapping.wait_beyond
        threads.append(threading.Thread(target=lambda wait=wait: found.append(wait(0, 60.0))))
    for thread in threads:
        thread.start()
        wait_until_asleep(thread)
    if what == "publish":
        publish(writer, 1)
    else:
        writer.close()
    for thread in threads:
        thread.join(30)
    assert found == [what == "publish"] * 2


def test_waiting_costs_no_processor_time(tmp_path: Path) -> None:
    writer, reader = ring_writer(tmp_path), ring_reader(tmp_path)
    publish(writer, 1)
    assert ids(reader) == [1]
    for _ in ("there is a writer", "it has gone"):
        before = time.thread_time()
        assert reader.receive(150) is None
        assert time.thread_time() - before < 0.05
        writer.close()


def test_closed_reader_returns_at_once(tmp_path: Path) -> None:
    writer, reader = ring_writer(tmp_path), ring_reader(tmp_path)
    publish(writer, 1)
    reader.close()
    reader.close()
    started = time.monotonic()
    assert reader.receive(LONG_MS) is None
    assert time.monotonic() - started < LONG_MS * 1e-3 / 2


def test_streams_are_those_with_a_living_writer(tmp_path: Path) -> None:
    assert available_streams("cam", directory=tmp_path) == set()
    road = ring_writer(tmp_path)
    wide = FrameRingWriter("cam", "wideRoad", SMALL, 2, directory=tmp_path)
    assert available_streams("cam", directory=tmp_path) == {"road", "wideRoad"}
    assert available_streams("other", directory=tmp_path) == set()
    wide.close()
    assert available_streams("cam", directory=tmp_path) == {"road"}
    os.link(tmp_path / "frames_cam_road", tmp_path / "frames_kept_road")
    assert available_streams("kept", directory=tmp_path) == {"road"}
    buffer = road.next_buffer()
    road.close()
    assert available_streams("cam", directory=tmp_path) == set()
    # The lock goes with the writer, also where the file stays and a buffer keeps the mapping.
    assert available_streams("kept", directory=tmp_path) == set()
    assert buffer.size == SMALL.size


def test_a_writer_removes_its_own_file_only(tmp_path: Path) -> None:
    first = ring_writer(tmp_path)
    (tmp_path / "frames_cam_road").unlink()
    second = ring_writer(tmp_path)
    first.close()
    assert available_streams("cam", directory=tmp_path) == {"road"}
    (tmp_path / "frames_cam_road").unlink()
    second.close()
    assert [path.name for path in tmp_path.iterdir()] == ["frames.lock"]


def test_second_writer_is_refused_and_leaves_the_first_alone(tmp_path: Path) -> None:
    writer, reader = ring_writer(tmp_path), ring_reader(tmp_path)
    with pytest.raises(FrameError, match="a running one"):
        ring_writer(tmp_path)
    publish(writer, 1)
    assert ids(reader) == [1]
    assert {path.name for path in tmp_path.iterdir()} == {"frames.lock", "frames_cam_road"}


def test_reader_follows_to_the_next_writer_and_its_format(tmp_path: Path) -> None:
    writer, reader = ring_writer(tmp_path, 2), ring_reader(tmp_path)
    publish(writer, 1)
    kept = received(reader, 0)
    writer.close()
    assert reader.receive(5) is None
    other = FrameFormat(width=32, height=8, stride=32, uv_offset=256, size=384)
    again = ring_writer(tmp_path, 2, other)
    timer = threading.Timer(0.03, publish, [again, 2])
    timer.start()
    frame = received(reader)
    timer.join()
    assert frame.format == reader.format == other
    assert frame.frame_id == 2
    # The old frame's memory is still there, although its ring is gone.
    assert (kept.data == 1).all()


def test_reader_without_descriptors_follows_later(tmp_path: Path) -> None:
    writer, reader = ring_writer(tmp_path), ring_reader(tmp_path)
    writer.close()
    again = ring_writer(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    try:
        # One is left: the file can be opened, and not be mapped, which takes another one.
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))
        assert reader.receive(0) is None
        with pytest.raises(FrameError, match=r"expected to map \d+ bytes, got Too many open files"):
            ring_reader(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    publish(again, 2)
    assert received(reader).frame_id == 2


def test_ring_in_shared_memory_is_gone_after_close() -> None:
    name = f"test-{os.getpid()}"
    writer = FrameRingWriter(name, "driver", SMALL)
    path = DIRECTORY / f"frames_{name}_driver"
    try:
        reader = FrameRingReader(name, "driver", conflate=True)
        publish(writer, 1)
        assert ids(reader) == [1]
        assert available_streams(name) == {"driver"}
        assert path.stat().st_size == ring_bytes(SMALL, DEFAULT_SLOTS) == ring_bytes(SMALL, 6)
    finally:
        writer.close()
    assert not path.exists()


WRITER = """
import time
form = frames.FrameFormat(64, 64, 64, 4096, 6144)
writer = frames.FrameRingWriter("cam", "road", form, 3, directory=Path(arguments[0]))
print("made", flush=True)
sys.stdin.readline()
for frame_id in range(20000):
    buffer = writer.next_buffer()
    buffer[:] = frame_id % 251
    writer.publish(frame_id, frame_id * 2, frame_id * 3)
    if frame_id % 64 == 0:
        time.sleep(0)
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("conflate", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_reader_in_another_process_never_sees_mixed_frames(conflate: bool, tmp_path: Path) -> None:
    with process_of(WRITER, tmp_path) as child:
        assert line(child) == "made"
        reader = ring_reader(tmp_path, conflate=conflate)
        tell(child)
        last = -1
        intact = 0
        while last < 19999:
            frame = received(reader)
            copy = np.array(frame.data)
            assert frame.frame_id > last
            last = frame.frame_id
            assert (frame.timestamp_sof_ns, frame.timestamp_eof_ns) == (last * 2, last * 3)
            if reader.is_intact():
                intact += 1
                assert (copy == last % 251).all()
        assert intact > 0
        assert line(child) == "done"


CRASHING = """
import signal
writer = frames.FrameRingWriter("cam", "road", SMALL, 4, directory=Path(arguments[0]))
print("made", flush=True)
sys.stdin.readline()
for frame_id in range(1, 6):
    writer.next_buffer()[:] = frame_id
    writer.publish(frame_id, 0, 0)
writer.next_buffer()[:100] = 77
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_writer_killed_in_the_middle_of_a_frame_leaves_no_wrong_frame(tmp_path: Path) -> None:
    first = ring_writer(tmp_path, 2)
    follower = ring_reader(tmp_path)
    first.close()
    with process_of(CRASHING, tmp_path) as child:
        assert line(child) == "made"
        reader = ring_reader(tmp_path, conflate=False)
        tell(child)
        assert child.wait(30) == -signal.SIGKILL
    # Frame 6 lies where frame 2 was: both are unusable, 3 to 5 are whole.
    assert ids(reader) == [3, 4, 5]
    assert available_streams("cam", directory=tmp_path) == set()
    # To who comes late, or from an earlier writer, what a dead one left is not new.
    late = ring_reader(tmp_path)
    assert [late.receive(10), follower.receive(50)] == [None, None]
    # The next writer takes over, and all follow it.
    publish(ring_writer(tmp_path, 2), 60)
    for one in (reader, late, follower):
        assert received(one).frame_id == 60
