import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cereal.frames import Frame, FrameFormat, FrameRingReader, FrameRingWriter, MemoryFrameSource
from modeld.frame_sync import FramePair
from modeld.loop_state import Fault
from modeld.sync_log import MAX_RECEIVES
from tests.modeld.conftest import make_sync

MS = 1_000_000
FrameOf = Callable[..., Frame]


@pytest.fixture
def main(small_format: FrameFormat) -> MemoryFrameSource:
    return MemoryFrameSource(small_format)


@pytest.fixture
def extra(small_format: FrameFormat) -> MemoryFrameSource:
    return MemoryFrameSource(small_format)


def push(source: MemoryFrameSource, frames: Sequence[Frame]) -> None:
    for frame in frames:
        source.push(frame)


def ids(pair: FramePair | None) -> tuple[int, int] | None:
    return None if pair is None else (pair.main.frame_id, pair.extra.frame_id)


def test_pairs_in_step(
    main: MemoryFrameSource, extra: MemoryFrameSource, frame_of: FrameOf
) -> None:
    push(main, [frame_of(index) for index in range(3)])
    push(extra, [frame_of(index, index * 50 * MS + 2 * MS) for index in range(3)])
    sync = make_sync(main, extra)
    assert [ids(sync.receive()) for _ in range(4)] == [(0, 0), (1, 1), (2, 2), None]


def test_single_camera_pairs_a_frame_with_itself(
    main: MemoryFrameSource, frame_of: FrameOf
) -> None:
    push(main, [frame_of(0), frame_of(1)])
    sync = make_sync(main, None)
    first = sync.receive()
    assert first is not None
    assert first.main is first.extra
    assert ids(sync.receive()) == (1, 1)
    assert sync.receive() is None


def test_single_camera_takes_the_first_frame_whatever_its_stamp(
    main: MemoryFrameSource, frame_of: FrameOf
) -> None:
    push(main, [frame_of(0, 0)])
    assert ids(make_sync(main, None).receive()) == (0, 0)


def test_single_camera_skips_a_frame_less_than_25_ms_later(
    main: MemoryFrameSource, frame_of: FrameOf
) -> None:
    push(main, [frame_of(0, 0), frame_of(1, 25 * MS - 1), frame_of(2, 25 * MS)])
    sync = make_sync(main, None)
    assert [ids(sync.receive()) for _ in range(2)] == [(0, 0), (2, 2)]


def test_extra_camera_catches_up(
    main: MemoryFrameSource, extra: MemoryFrameSource, frame_of: FrameOf
) -> None:
    push(main, [frame_of(7)])
    push(extra, [frame_of(index) for index in range(5, 8)])
    assert ids(make_sync(main, extra).receive()) == (7, 7)


@pytest.mark.parametrize(("lag_ns", "expected"), [(25 * MS - 1, (7, 7)), (25 * MS, (7, 8))])
def test_extra_camera_is_behind_at_25_ms(
    main: MemoryFrameSource,
    extra: MemoryFrameSource,
    frame_of: FrameOf,
    lag_ns: int,
    expected: tuple[int, int],
) -> None:
    push(main, [frame_of(7, 350 * MS)])
    push(extra, [frame_of(7, 350 * MS - lag_ns), frame_of(8, 400 * MS - lag_ns)])
    assert ids(make_sync(main, extra).receive()) == expected


def test_main_camera_discards_frames_before_the_extra_camera(
    main: MemoryFrameSource, extra: MemoryFrameSource, frame_of: FrameOf
) -> None:
    push(main, [frame_of(0), frame_of(1), frame_of(2), frame_of(3)])
    push(extra, [frame_of(2), frame_of(3)])
    sync = make_sync(main, extra)
    # Main 0 meets extra 2, 100 ms ahead; main must pass it before the next pair.
    assert [ids(sync.receive()) for _ in range(2)] == [(0, 2), (3, 3)]


def test_main_frame_is_kept_while_the_extra_camera_is_late(
    main: MemoryFrameSource, extra: MemoryFrameSource, frame_of: FrameOf
) -> None:
    push(main, [frame_of(1), frame_of(2)])
    sync = make_sync(main, extra)
    assert sync.receive() is None
    push(extra, [frame_of(1)])
    assert ids(sync.receive()) == (1, 1)


def test_missing_main_frame_is_logged_once(
    main: MemoryFrameSource, caplog: pytest.LogCaptureFixture
) -> None:
    sync = make_sync(main, None)
    with caplog.at_level(logging.WARNING):
        assert [sync.receive() for _ in range(100)] == [None] * 100
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "no frame from the road camera within 100 ms" in caplog.text
    assert sync.log.episodes.state.faults[Fault.NO_FRAME] == 100


@pytest.mark.parametrize(("gap_ms", "logged"), [(10, False), (11, True)])
def test_more_than_10_ms_apart_is_an_error_but_still_a_pair(
    main: MemoryFrameSource,
    extra: MemoryFrameSource,
    frame_of: FrameOf,
    gap_ms: int,
    logged: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    push(main, [frame_of(1, 50 * MS)])
    push(extra, [frame_of(1, (50 + gap_ms) * MS)])
    with caplog.at_level(logging.ERROR):
        assert ids(make_sync(main, extra).receive()) == (1, 1)
    assert ("out of sync" in caplog.text) is logged


@pytest.mark.parametrize("per_frame", [0, 50, 50_000], ids=["seconds", "milli", "micro"])
def test_stamps_that_are_not_nanoseconds_are_said_and_waited_out(
    main: MemoryFrameSource,
    frame_of: FrameOf,
    per_frame: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    push(main, [frame_of(index, 1000 + index * per_frame) for index in range(200)])
    sync = make_sync(main, None)
    assert ids(sync.receive()) == (0, 0)
    assert [sync.receive() for _ in range(10)] == [None] * 10
    said, exhausted = caplog.messages
    assert exhausted.startswith("no frame from the road camera")
    if per_frame:
        assert said.startswith("road camera: frames 1..60: expected start-of-frame stamps in nano")
        assert sync.log.episodes.state.faults[Fault.FRAME_STAMPS] == 3
    else:
        assert said.startswith("road camera: frame 1 has the start of the one before, 1000 ns")
        assert sync.log.episodes.state.faults[Fault.FRAME_STAMPS] == 199
    # The camera has learnt what time is.
    push(main, [frame_of(200)])
    assert ids(sync.receive()) == (200, 200)


def test_extra_stamps_that_are_not_nanoseconds_lose_the_camera(
    main: MemoryFrameSource,
    extra: MemoryFrameSource,
    frame_of: FrameOf,
    caplog: pytest.LogCaptureFixture,
) -> None:
    push(main, [frame_of(100)])
    push(extra, [frame_of(index, 5 + index // 20) for index in range(200)])
    sync = make_sync(main, extra)
    pair = sync.receive()
    assert pair is not None
    assert pair.lacks_extra
    assert "wide camera: frames 0..59: expected start-of-frame stamps in nanosec" in caplog.text


def test_one_wrong_extra_stamp_stops_pairing_only_for_a_while(
    main: MemoryFrameSource,
    extra: MemoryFrameSource,
    frame_of: FrameOf,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sync = make_sync(main, extra)
    pairs = []
    with caplog.at_level(logging.ERROR):
        for index in range(15):
            push(main, [frame_of(index)])
            push(extra, [frame_of(index, 10**15 if index == 0 else None)])
            pairs.append(sync.receive())
    assert pairs[0] is not None
    assert pairs[0].apart
    # 300 ms for the stamp, 200 ms until the camera counts as back.
    assert pairs[1:6] == [None] * 5
    assert [pair is not None and pair.lacks_extra for pair in pairs[6:10]] == [True] * 4
    assert [ids(pair) for pair in pairs[10:]] == [(index, index) for index in range(10, 15)]
    assert all(pair is not None and not pair.lacks_extra and not pair.apart for pair in pairs[10:])
    assert "check its rate and that both cameras use one clock" in caplog.text


@pytest.mark.parametrize("streams", [("road",), ("road", "wideRoad")])
def test_a_second_drive_with_earlier_stamps_pairs_from_its_first_frame(
    tmp_path: Path, small_format: FrameFormat, streams: tuple[str, ...]
) -> None:
    def write(writer: FrameRingWriter, index: int, start_ns: int) -> None:
        writer.next_buffer()[:] = index % 256
        sof_ns = start_ns + index * 50 * MS
        writer.publish(index, sof_ns, sof_ns + 10 * MS)

    def open_rings() -> dict[str, FrameRingWriter]:
        return {s: FrameRingWriter("sync", s, small_format, directory=tmp_path) for s in streams}

    writers = open_rings()
    readers = {
        s: FrameRingReader("sync", s, conflate=s == "road", directory=tmp_path) for s in streams
    }
    sync = make_sync(readers["road"], readers.get("wideRoad"), timeout_ms=500)
    for index in range(3):
        for writer in reversed(list(writers.values())):
            write(writer, index, 10**12)
        assert ids(sync.receive()) == (index, index)
    if "wideRoad" in writers:
        # The first drive ends between its two cameras: this frame stays in the ring.
        write(writers["wideRoad"], 3, 10**12)
    for writer in writers.values():
        writer.close()
    writers = open_rings()
    for index in range(700, 703):
        for writer in reversed(list(writers.values())):
            write(writer, index, 0)
        assert ids(sync.receive()) == (index, index)
    for reader in readers.values():
        reader.close()
    for writer in writers.values():
        writer.close()


def test_stamps_that_go_back_a_little_are_no_restart(
    main: MemoryFrameSource, extra: MemoryFrameSource, frame_of: FrameOf
) -> None:
    # Jitter: the second main frame starts 5 ms before the first, and is the same moment.
    push(main, [frame_of(1, 50 * MS), frame_of(2, 45 * MS), frame_of(3, 100 * MS)])
    push(extra, [frame_of(1, 52 * MS), frame_of(2, 102 * MS)])
    sync = make_sync(main, extra)
    assert [ids(sync.receive()) for _ in range(3)] == [(1, 1), (3, 2), None]


def test_lost_extra_camera_is_gone_on_without_after_three_waits(
    main: MemoryFrameSource,
    extra: MemoryFrameSource,
    frame_of: FrameOf,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sync = make_sync(main, extra)
    push(main, [frame_of(0)])
    push(extra, [frame_of(0)])
    assert ids(sync.receive()) == (0, 0)
    pairs = []
    with caplog.at_level(logging.ERROR):
        for index in range(1, 10):
            push(main, [frame_of(index)])
            pairs.append(sync.receive())
    # 300 ms, and then the newest main frame.
    assert [ids(pair) for pair in pairs[:4]] == [None, None, (3, 3), (4, 4)]
    assert [ids(pair) for pair in pairs[4:]] == [(index, index) for index in range(5, 10)]
    assert all(pair.lacks_extra and pair.extra is pair.main for pair in pairs if pair is not None)
    assert len(caplog.messages) == 1
    assert (
        "extra camera lost: none of its frames belongs to main frame 3 within 300 ms" in caplog.text
    )


def test_extra_camera_that_comes_back_is_paired_again(
    main: MemoryFrameSource,
    extra: MemoryFrameSource,
    frame_of: FrameOf,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sync = make_sync(main, extra)
    found = []
    with caplog.at_level(logging.WARNING):
        for index in range(30):
            push(main, [frame_of(index)])
            if index < 5 or index > 20:
                push(extra, [frame_of(index, index * 50 * MS + 2 * MS)])
            pair = sync.receive()
            found.append(None if pair is None else pair.lacks_extra)
    assert found == [False] * 5 + [None] * 2 + [True] * 14 + [False] * 9
    assert sync.log.episodes.state.faults[Fault.CAMERA_LOST] == 1


def test_extra_camera_that_never_sends_is_lost_too(
    main: MemoryFrameSource, extra: MemoryFrameSource, frame_of: FrameOf
) -> None:
    sync = make_sync(main, extra)
    push(main, [frame_of(100), frame_of(101)])
    assert [ids(sync.receive()) for _ in range(4)] == [None, None, (101, 101), None]


def test_frames_of_another_moment_do_not_bring_the_extra_camera_back(
    main: MemoryFrameSource, extra: MemoryFrameSource, frame_of: FrameOf
) -> None:
    sync = make_sync(main, extra)
    lacking = []
    for index in range(30):
        push(main, [frame_of(index)])
        if index >= 10:
            # A clock of its own: far ahead.
            push(extra, [frame_of(index, 10**15 + index * 50 * MS)])
        pair = sync.receive()
        lacking.append(pair is not None and pair.lacks_extra)
    assert lacking == [False] * 2 + [True] * 28


def test_extra_camera_with_a_clock_of_its_own_is_as_good_as_lost(
    main: MemoryFrameSource, extra: MemoryFrameSource, frame_of: FrameOf
) -> None:
    """Its frames are always a second behind, which no catching up mends."""
    sync = make_sync(main, extra)
    push(main, [frame_of(100)])
    push(extra, [frame_of(index, index * 50 * MS) for index in range(20, 20 + MAX_RECEIVES)])
    assert ids(sync.receive()) == (100, 100)


def test_lost_extra_camera_of_a_ring_comes_back_with_a_new_writer(
    tmp_path: Path, small_format: FrameFormat
) -> None:
    def open_ring(stream: str) -> FrameRingWriter:
        return FrameRingWriter("lost", stream, small_format, directory=tmp_path)

    def write(writer: FrameRingWriter, index: int) -> None:
        writer.next_buffer()[:] = index % 256
        writer.publish(index, index * 50 * MS, index * 50 * MS + 10 * MS)

    road, wide = open_ring("road"), open_ring("wideRoad")
    readers = [
        FrameRingReader("lost", stream, conflate=stream == "road", directory=tmp_path)
        for stream in ("road", "wideRoad")
    ]
    sync = make_sync(readers[0], readers[1], timeout_ms=100)
    found = []
    for index in range(40):
        if index == 5:
            wide.close()
        if index == 20:
            wide = open_ring("wideRoad")
        # A new ring is found in one look and read in the next.
        if not 5 <= index < 20:
            write(wide, index)
        write(road, index)
        pair = sync.receive()
        found.append(None if pair is None else pair.lacks_extra)
        assert pair is None or sync.is_intact()
    assert found[:5] == [False] * 5
    assert found[20 - 5 : 20] == [True] * 5
    assert found[22:] == [False] * 18
    for reader in readers:
        reader.close()
    for writer in (road, wide):
        writer.close()


def test_is_intact_asks_both_cameras(small_format: FrameFormat, main: MemoryFrameSource) -> None:
    class Overwritten(MemoryFrameSource):
        def is_intact(self) -> bool:
            return False

    overwritten = Overwritten(small_format)
    assert make_sync(main, None).is_intact()
    assert not make_sync(overwritten, None).is_intact()
    assert not make_sync(main, overwritten).is_intact()
