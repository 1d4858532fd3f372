import contextlib
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cereal import frame_ring
from cereal.errors import FrameError
from cereal.frame_ring import is_sound
from cereal.frames import (
    DIRECTORY,
    Frame,
    FrameFormat,
    FrameRingReader,
    FrameRingWriter,
    FrameSource,
    MemoryFrameSource,
    available_streams,
    nv12_format,
    nv12_unpadded,
)

ROOT = Path(__file__).parents[2]
SMALL = FrameFormat(width=16, height=8, stride=16, uv_offset=128, size=192)
MS = 1_000_000
LONG_MS = 10_000  # what is waited where something should come sooner


def publish(writer: FrameRingWriter, *frame_ids: int) -> None:
    for frame_id in frame_ids:
        writer.next_buffer()[:] = frame_id % 251
        writer.publish(frame_id, frame_id * 50 * MS, frame_id * 50 * MS + 10)


def ids(reader: FrameSource) -> list[int]:
    found = []
    while (frame := reader.receive(0)) is not None:
        assert (frame.data == frame.frame_id % 251).all()
        found.append(frame.frame_id)
    return found


@contextlib.contextmanager
def process(script: str, directory: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run a script in another process; its lines arrive on `stdout`."""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(directory)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as child:  # fmt: skip
        try:
            yield child
        finally:
            child.kill()


def line(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def tell(child: "subprocess.Popen[str]", text: str) -> None:
    assert child.stdin is not None
    child.stdin.write(text + "\n")
    child.stdin.flush()


@pytest.mark.parametrize(
    ("width", "height", "expected", "payload"),
    [
        (1928, 1208, FrameFormat(1928, 1208, 2048, 2_490_368, 4_804_608), 3_727_360),
        (1344, 760, FrameFormat(1344, 760, 1408, 1_081_344, 2_428_928), 1_616_384),
    ],
)
def test_padded_format_of_the_cameras(
    width: int, height: int, expected: FrameFormat, payload: int
) -> None:
    assert nv12_format(width, height) == expected
    assert expected.payload_bytes == payload


def test_payload_of_an_unpadded_format_is_its_pixels() -> None:
    assert nv12_unpadded(16, 8) == SMALL
    assert SMALL.payload_bytes == SMALL.size == 16 * 8 * 3 // 2
    assert nv12_unpadded(1928, 1208) == FrameFormat(1928, 1208, 1928, 2_329_024, 3_493_536)


@pytest.mark.parametrize("layout", [nv12_format, nv12_unpadded])
@pytest.mark.parametrize(("width", "height"), [(0, 8), (15, 8), (16, 7), (-2, 8)])
def test_format_needs_even_sides(
    layout: Callable[[int, int], FrameFormat], width: int, height: int
) -> None:
    with pytest.raises(ValueError, match="positive even sides"):
        layout(width, height)


@pytest.mark.parametrize("size", [(1928, 1208), (1344, 760), (2688, 1520), (960, 540), (2, 2)])
def test_formats_are_sound_up_to_the_last_byte_of_their_pixels(size: tuple[int, int]) -> None:
    for form in (nv12_format(*size), nv12_unpadded(*size)):
        need = form.uv_offset + form.stride * form.height // 2
        assert form.payload_bytes == need
        # Producers put different room behind the same planes: only what is read must be there.
        for total in (form.size, need, need + 1, form.size + 12_345):
            assert is_sound(replace(form, size=total))
        assert not is_sound(replace(form, size=need - 1))
        assert not is_sound(replace(form, stride=form.width - 1))
        assert not is_sound(replace(form, uv_offset=form.stride * form.height - 1))


def test_unpadded_frames_pass_through_a_ring(tmp_path: Path) -> None:
    form = nv12_unpadded(1928, 4)
    picture = np.arange(form.size, dtype=np.uint32).astype(np.uint8)
    writer = FrameRingWriter("cam", "road", form, 3, directory=tmp_path)
    reader = FrameRingReader("cam", "road", conflate=True, directory=tmp_path)
    assert reader.receive(0) is None
    writer.next_buffer()[:] = picture
    writer.publish(1, MS, 2 * MS)
    frame = reader.receive(0)
    assert frame is not None
    assert frame.format == form
    assert np.array_equal(frame.data, picture)
    reader.close()
    writer.close()


def test_frames_arrive_in_order_with_their_times(tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 4, directory=tmp_path)
    reader = FrameRingReader("cam", "road", conflate=False, directory=tmp_path)
    assert reader.receive(0) is None
    assert not reader.is_intact()
    publish(writer, 7, 8, 9)
    frame = reader.receive(0)
    assert frame is not None
    assert (frame.frame_id, frame.timestamp_sof_ns, frame.timestamp_eof_ns) == (
        7,
        350 * MS,
        350 * MS + 10,
    )
    assert frame.format == reader.format == SMALL
    assert frame.data.shape == (SMALL.size,)
    assert not frame.data.flags.writeable
    assert frame.data.base is not None  # a view: nothing was copied
    assert reader.is_intact()
    assert ids(reader) == [8, 9]


def test_conflating_reader_takes_the_newest(tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 4, directory=tmp_path)
    reader = FrameRingReader("cam", "road", conflate=True, directory=tmp_path)
    publish(writer, 1, 2, 3)
    assert ids(reader) == [3]
    publish(writer, 4)
    assert ids(reader) == [4]
    assert reader.lapped == 0


def test_slow_reader_is_told_what_it_missed(tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 4, directory=tmp_path)
    reader = FrameRingReader("cam", "road", conflate=False, directory=tmp_path)
    publish(writer, *range(1, 11))
    assert ids(reader) == [7, 8, 9, 10]
    assert reader.lapped == 6


def test_frame_that_is_being_overwritten_is_not_intact(tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
    reader = FrameRingReader("cam", "road", conflate=False, directory=tmp_path)
    publish(writer, 1)
    assert reader.receive(0) is not None
    publish(writer, 2)
    assert reader.is_intact()
    writer.next_buffer()
    assert not reader.is_intact()


@pytest.mark.parametrize("conflate", [False, True])
@pytest.mark.parametrize("garbage", [1 << 32, (1 << 64) - 1])
def test_a_frame_id_that_no_message_can_carry_counts_as_lapped(
    tmp_path: Path, garbage: int, conflate: bool
) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 4, directory=tmp_path)
    reader = FrameRingReader("cam", "road", conflate=conflate, directory=tmp_path)
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
    frame = reader.receive(0)
    assert frame is not None
    assert frame.frame_id == (1 << 32) - 1
    reader.close()
    writer.close()


@pytest.mark.parametrize("frame_id", [-1, 1 << 32, 1 << 64])
def test_a_writer_refuses_a_frame_id_of_more_than_32_bits(tmp_path: Path, frame_id: int) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 4, directory=tmp_path)
    reader = FrameRingReader("cam", "road", conflate=False, directory=tmp_path)
    writer.next_buffer()[:] = 7
    with pytest.raises(FrameError, match="expected a frame id of 0 to 4294967295, got"):
        writer.publish(frame_id, 1, 2)
    assert reader.receive(0) is None
    # The buffer is still the writer's, to be published as it should be.
    writer.publish(7, 1, 2)
    assert ids(reader) == [7]
    reader.close()
    writer.close()


def test_half_written_frame_is_not_received(tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
    reader = FrameRingReader("cam", "road", conflate=False, directory=tmp_path)
    publish(writer, 1, 2)
    writer.next_buffer()[:50] = 99
    # The slot of frame 1 is the one being written; frame 2 is still there.
    assert ids(reader) == [2]
    assert reader.lapped == 1
    writer.next_buffer()[:] = 3
    writer.publish(3, 0, 0)
    assert ids(reader) == [3]


def test_reader_begins_with_frames_published_after_it(tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 4, directory=tmp_path)
    publish(writer, 1, 2)
    reader = FrameRingReader("cam", "road", conflate=True, directory=tmp_path)
    assert reader.receive(0) is None
    publish(writer, 3)
    assert ids(reader) == [3]


def test_publish_needs_a_buffer_and_an_open_ring(tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
    with pytest.raises(FrameError, match="next_buffer before publish of frame 5"):
        writer.publish(5, 0, 0)
    publish(writer, 1)
    with pytest.raises(FrameError, match="two publishes"):
        writer.publish(2, 0, 0)
    writer.close()
    writer.close()
    with pytest.raises(FrameError, match="closed"):
        writer.next_buffer()


def test_receive_waits_and_wakes(tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 4, directory=tmp_path)
    reader = FrameRingReader("cam", "road", conflate=True, directory=tmp_path)
    started = time.monotonic()
    assert reader.receive(30) is None
    assert time.monotonic() - started > 0.029
    timer = threading.Timer(0.03, publish, [writer, 1])
    timer.start()
    frame = reader.receive(20_000)
    timer.join()
    assert frame is not None
    assert frame.frame_id == 1


def test_waiting_costs_no_processor_time(tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 4, directory=tmp_path)
    reader = FrameRingReader("cam", "road", conflate=True, directory=tmp_path)
    before = time.thread_time()
    assert reader.receive(300) is None
    assert time.thread_time() - before < 0.1
    # Nor when there is no writer any more.
    writer.close()
    before = time.thread_time()
    assert reader.receive(300) is None
    assert time.thread_time() - before < 0.1


def test_streams_are_those_with_a_living_writer(tmp_path: Path) -> None:
    assert available_streams("cam", directory=tmp_path) == set()
    road = FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
    wide = FrameRingWriter("cam", "wideRoad", SMALL, 2, directory=tmp_path)
    assert available_streams("cam", directory=tmp_path) == {"road", "wideRoad"}
    assert available_streams("other", directory=tmp_path) == set()
    wide.close()
    assert available_streams("cam", directory=tmp_path) == {"road"}
    road.close()
    assert available_streams("cam", directory=tmp_path) == set()


def test_second_writer_is_refused_and_leaves_the_first_alone(tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
    reader = FrameRingReader("cam", "road", conflate=True, directory=tmp_path)
    with pytest.raises(FrameError, match="a living one"):
        FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
    publish(writer, 1)
    assert ids(reader) == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "frames.lock",
        "frames_cam_road",
    ]


def test_reader_follows_to_the_next_writer_and_its_format(tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
    reader = FrameRingReader("cam", "road", conflate=True, directory=tmp_path)
    publish(writer, 1)
    kept = reader.receive(0)
    assert kept is not None
    writer.close()
    assert reader.receive(5) is None
    other = FrameFormat(width=32, height=8, stride=32, uv_offset=256, size=384)
    again = FrameRingWriter("cam", "road", other, 2, directory=tmp_path)
    timer = threading.Timer(0.03, publish, [again, 2])
    timer.start()
    frame = reader.receive(20_000)
    timer.join()
    assert frame is not None
    assert frame.format == reader.format == other
    assert frame.frame_id == 2
    # The old frame's memory is still there, although its ring is gone.
    assert (kept.data == 1).all()


def test_reader_without_descriptors_follows_later(tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
    reader = FrameRingReader("cam", "road", conflate=True, directory=tmp_path)
    writer.close()
    again = FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    try:
        # One is left: the file can be opened, and not be mapped, which takes another one.
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))
        assert reader.receive(0) is None
        with pytest.raises(FrameError, match=r"expected to map \d+ bytes, got Too many open files"):
            FrameRingReader("cam", "road", conflate=True, directory=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    publish(again, 2)
    frame = reader.receive(20_000)
    assert frame is not None
    assert frame.frame_id == 2


@pytest.mark.parametrize("name", ["", "a/b", "../x", "x" * 65, "a b"])
def test_names_that_would_leave_the_directory_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(FrameError, match="expected a name"):
        FrameRingWriter(name, "road", SMALL, directory=tmp_path)
    with pytest.raises(FrameError, match="'rear'"):
        FrameRingReader("cam", "rear", conflate=True, directory=tmp_path)


def test_missing_ring_is_named(tmp_path: Path) -> None:
    with pytest.raises(FrameError, match="frames_cam_road: expected a frame ring"):
        FrameRingReader("cam", "road", conflate=True, directory=tmp_path)


def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FrameError, match="expected to make a file beside it"):
        FrameRingWriter("cam", "road", SMALL, directory=tmp_path / "no")


@pytest.mark.parametrize("count", [0, 1, 257])
def test_number_of_slots_is_bounded(count: int, tmp_path: Path) -> None:
    with pytest.raises(FrameError, match="2 to 256 slots"):
        FrameRingWriter("cam", "road", SMALL, count, directory=tmp_path)


def test_format_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FrameError, match="sound format"):
        FrameRingWriter("cam", "road", FrameFormat(16, 8, 16, 100, 192), directory=tmp_path)


def test_too_little_memory_is_said_before_the_first_frame(tmp_path: Path) -> None:
    # A limit of the process stands for a full file system: both fail in the same call.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(FrameError, match="bytes of shared memory"):
            FrameRingWriter("cam", "road", nv12_format(640, 480), directory=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


# word of the header -> value that cannot be
DAMAGE = [(0, 1), (1, 2), (2, 1), (2, 3), (2, 1 << 40), (3, 0), (3, 1 << 20), (4, 1 << 20),
          (5, 15), (5, 1 << 60), (6, 127), (6, 1 << 50), (7, 191), (7, 1 << 50)]  # fmt: skip


@pytest.mark.parametrize(("word", "value"), DAMAGE)
def test_damaged_header_is_refused(word: int, value: int, tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
    with (tmp_path / "frames_cam_road").open("r+b") as file:
        file.seek(8 * word)
        file.write(struct.pack("<Q", value))
    with pytest.raises(FrameError, match="frames_cam_road: expected"):
        FrameRingReader("cam", "road", conflate=True, directory=tmp_path)
    writer.close()


@pytest.mark.parametrize("size", [0, 8, 200, 4096, 12287, 12289])
def test_file_of_another_size_is_refused(size: int, tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
    content = (tmp_path / "frames_cam_road").read_bytes()
    assert len(content) == 4096 + 2 * 4096
    (tmp_path / "frames_cut_road").write_bytes((content + bytes(8))[:size])
    with pytest.raises(FrameError, match="frames_cut_road: expected"):
        FrameRingReader("cut", "road", conflate=True, directory=tmp_path)
    writer.close()


def test_link_in_place_of_a_ring_is_refused(tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
    (tmp_path / "frames_link_road").symlink_to(tmp_path / "frames_cam_road")
    with pytest.raises(FrameError, match="frames_link_road"):
        FrameRingReader("link", "road", conflate=True, directory=tmp_path)
    writer.close()


WRITER = """
import sys, time
from pathlib import Path
from cereal.frames import FrameFormat, FrameRingWriter
writer = FrameRingWriter("cam", "road", FrameFormat(64, 64, 64, 4096, 6144), 3,
                         directory=Path(sys.argv[1]))
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


@pytest.mark.parametrize("conflate", [False, True])
def test_reader_in_another_process_never_sees_mixed_frames(conflate: bool, tmp_path: Path) -> None:
    with process(WRITER, tmp_path) as child:
        assert line(child) == "made"
        reader = FrameRingReader("cam", "road", conflate=conflate, directory=tmp_path)
        tell(child, "go")
        last = -1
        intact = 0
        while (frame := reader.receive(2000)) is not None:
            copy = np.array(frame.data)
            assert frame.frame_id > last
            last = frame.frame_id
            assert (frame.timestamp_sof_ns, frame.timestamp_eof_ns) == (last * 2, last * 3)
            if reader.is_intact():
                intact += 1
                assert (copy == last % 251).all()
            if last == 19999:
                break
        assert last == 19999
        assert intact > 0
        assert line(child) == "done"


CRASHING = """
import os, signal, sys
from pathlib import Path
from cereal.frames import FrameFormat, FrameRingWriter
writer = FrameRingWriter("cam", "road", FrameFormat(16, 8, 16, 128, 192), 4,
                         directory=Path(sys.argv[1]))
print("made", flush=True)
sys.stdin.readline()
for frame_id in range(1, 6):
    writer.next_buffer()[:] = frame_id
    writer.publish(frame_id, 0, 0)
writer.next_buffer()[:100] = 77
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_writer_killed_in_the_middle_of_a_frame_leaves_no_wrong_frame(tmp_path: Path) -> None:
    with process(CRASHING, tmp_path) as child:
        assert line(child) == "made"
        reader = FrameRingReader("cam", "road", conflate=False, directory=tmp_path)
        tell(child, "go")
        assert child.wait(30) == -signal.SIGKILL
    # Frame 6 lies where frame 2 was: both are unusable, 3 to 5 are whole.
    assert ids(reader) == [3, 4, 5]
    assert available_streams("cam", directory=tmp_path) == set()
    late = FrameRingReader("cam", "road", conflate=True, directory=tmp_path)
    assert late.receive(10) is None
    # The next writer takes over, and both readers follow it.
    writer = FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
    publish(writer, 60)
    for one in (reader, late):
        frame = one.receive(2000)
        assert frame is not None
        assert frame.frame_id == 60


def test_frames_of_a_second_dead_writer_are_not_taken_for_new(tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
    reader = FrameRingReader("cam", "road", conflate=True, directory=tmp_path)
    writer.close()
    with process(CRASHING, tmp_path) as child:
        assert line(child) == "made"
        tell(child, "go")
        child.wait(30)
    assert reader.receive(50) is None


def test_closed_reader_returns_at_once(tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
    reader = FrameRingReader("cam", "road", conflate=True, directory=tmp_path)
    reader.close()
    reader.close()
    started = time.monotonic()
    assert reader.receive(LONG_MS) is None
    assert time.monotonic() - started < LONG_MS * 1e-3 / 2
    writer.close()


def test_ring_in_shared_memory_is_gone_after_close() -> None:
    name = f"test-{os.getpid()}"
    writer = FrameRingWriter(name, "driver", SMALL, 2)
    try:
        reader = FrameRingReader(name, "driver", conflate=True)
        publish(writer, 1)
        assert ids(reader) == [1]
        assert available_streams(name) == {"driver"}
    finally:
        writer.close()
    assert not (DIRECTORY / f"frames_{name}_driver").exists()


def test_waiting_without_futex_still_sees_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_ring, "_FUTEX_NUMBERS", {})
    test_receive_waits_and_wakes(tmp_path)


def test_memory_source_gives_back_what_was_pushed() -> None:
    source = MemoryFrameSource(SMALL)
    frame = Frame(np.zeros(SMALL.size, np.uint8), SMALL, 3, 30, 40)
    source.push(frame)
    assert source.format == SMALL
    assert source.receive(100) is frame
    assert source.is_intact()
    assert source.receive(100) is None
    source.push(frame)
    source.close()
    assert source.receive(0) is None


def test_memory_source_refuses_other_layouts() -> None:
    source = MemoryFrameSource(SMALL)
    with pytest.raises(FrameError, match="memory frames: expected"):
        source.push(Frame(np.zeros(191, np.uint8), SMALL, 3, 30, 40))
    other = nv12_format(16, 8)
    with pytest.raises(FrameError, match="memory frames: expected"):
        source.push(Frame(np.zeros(other.size, np.uint8), other, 3, 30, 40))
