"""Frames of two cameras become pairs of one moment, whatever their stamps say."""

from pathlib import Path

import pytest

from cereal.frames import Frame, FrameRingReader, FrameRingWriter, MemoryFrameSource
from modeld.frames.frame_log import MAX_RECEIVES
from modeld.frames.frame_sync import FramePair
from modeld.state.loop_state import Fault
from tests.modeld.bench import MS, Log, frame_of
from tests.modeld.conftest import make_sync
from tests.modeld.fake_program import SMALL

Ids = tuple[int, int]


class Newest(MemoryFrameSource):
    """A camera in memory that conflates."""

    def receive(self, timeout_ms: int) -> Frame | None:
        newest = None
        while (frame := super().receive(timeout_ms)) is not None:
            newest = frame
        return newest


class Cameras:
    """Two cameras in memory, and the pairs that come of their frames."""

    def __init__(self, *, single: bool = False, conflate: bool = False) -> None:
        self.main = (Newest if conflate else MemoryFrameSource)(SMALL)
        self.extra = MemoryFrameSource(SMALL)
        self.sync = make_sync(self.main, None if single else self.extra)

    def push(
        self, main: dict[int, float | None] | range, extra: dict[int, float | None] | range
    ) -> None:
        """Frames of each camera by id, with starts in ms; of a range: every 50 ms."""
        for source, frames in ((self.main, main), (self.extra, extra)):
            stamps = frames if isinstance(frames, dict) else dict.fromkeys(frames)
            for frame_id, start_ms in stamps.items():
                start_ns = None if start_ms is None else round(start_ms * MS)
                source.push(frame_of(frame_id, start_ns))

    def pairs(self, count: int) -> list[FramePair | None]:
        return [self.sync.receive() for _ in range(count)]

    def ids(self, count: int) -> list[Ids | None]:
        return [ids(pair) for pair in self.pairs(count)]

    def count(self, fault: Fault) -> int:
        return self.sync.log.episodes.state.faults[fault]


def ids(pair: FramePair | None) -> Ids | None:
    return None if pair is None else (pair.main.frame_id, pair.extra.frame_id)


@pytest.fixture
def both() -> Cameras:
    return Cameras()


@pytest.mark.parametrize(
    ("main", "extra", "expected"),
    [
        # In step, the extra camera 2 ms late.
        (range(3), {0: 2, 1: 52, 2: 102}, [(0, 0), (1, 1), (2, 2), None]),
        # The extra camera catches up.
        (range(7, 8), range(5, 8), [(7, 7)]),
        # It is behind from 25 ms on.
        ({7: 350}, {7: 325.000001, 8: 375.000001}, [(7, 7)]),
        ({7: 350}, {7: 325, 8: 375}, [(7, 8)]),
        # Main 0 meets extra 2, 100 ms ahead; main must pass it before the next pair.
        (range(4), range(2, 4), [(0, 2), (3, 3)]),
        # Jitter is no restart: the second main frame starts 5 ms before the first, and is the same
        # moment.
        ({1: 50, 2: 45, 3: 100}, {1: 52, 2: 102}, [(1, 1), (3, 2), None]),
        # A camera that never sends is lost, too.
        (range(100, 102), range(0), [None, None, (101, 101), None]),
        # Its frames are always a second behind, which no catching up mends.
        (range(100, 101), range(20, 20 + MAX_RECEIVES), [(100, 100)]),
    ],
)
def test_pairs(
    both: Cameras,
    main: dict[int, float | None] | range,
    extra: dict[int, float | None] | range,
    expected: list[Ids | None],
) -> None:
    both.push(main, extra)
    assert both.ids(len(expected)) == expected


def test_main_frame_is_kept_while_the_extra_camera_is_late(both: Cameras) -> None:
    both.push(range(1, 3), {})
    assert both.ids(1) == [None]
    both.push({}, range(1, 2))
    assert both.ids(1) == [(1, 1)]


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        (range(2), [0, 1, None]),
        ({0: 0}, [0]),  # the first frame, whatever its stamp
        # One that starts less than 25 ms later is the same moment.
        ({0: 0, 1: 24.999999, 2: 25}, [0, 2]),
    ],
)
def test_a_single_camera_pairs_a_frame_with_itself(
    main: dict[int, float | None] | range, expected: list[int | None]
) -> None:
    alone = Cameras(single=True)
    alone.push(main, {})
    pairs = alone.pairs(len(expected))
    assert [pair and pair.main.frame_id for pair in pairs] == expected
    assert all(pair is None or pair.main is pair.extra for pair in pairs)
    assert not any(pair and (pair.lacks_extra or pair.apart) for pair in pairs)


def test_missing_main_frame_is_logged_once(caplog: Log) -> None:
    alone = Cameras(single=True)
    assert alone.pairs(100) == [None] * 100
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no frame from the road camera within 100 ms" in caplog.text
    assert alone.count(Fault.NO_FRAME) == 100


@pytest.mark.parametrize(("gap_ms", "logged"), [(10, False), (11, True)])
def test_more_than_10_ms_apart_is_an_error_but_still_a_pair(
    both: Cameras, gap_ms: int, logged: bool, caplog: Log
) -> None:
    both.push({1: 50}, {1: 50 + gap_ms})
    assert both.ids(1) == [(1, 1)]
    said = [r.message for r in caplog.records if r.levelname == "ERROR"]
    assert any("out of sync" in text for text in said) is logged


@pytest.mark.parametrize(
    ("per_frame_ns", "said", "faults"),
    [
        (0, "road camera: frame 1 has the start of the one before, 1000 ns", 199),
        (50, "road camera: frames 1..60: expected start-of-frame stamps in nano", 3),
        (50_000, "road camera: frames 1..60: expected start-of-frame stamps in nano", 3),
    ],
    ids=["seconds", "milli", "micro"],
)
def test_stamps_that_are_not_nanoseconds_are_said_and_waited_out(
    per_frame_ns: int, said: str, faults: int, caplog: Log
) -> None:
    alone = Cameras(single=True)
    for index in range(200):
        alone.main.push(frame_of(index, 1000 + index * per_frame_ns))
    assert alone.ids(11) == [(0, 0)] + [None] * 10
    first, exhausted = caplog.messages
    assert first.startswith(said)
    assert exhausted.startswith("no frame from the road camera")
    assert alone.count(Fault.FRAME_STAMPS) == faults
    # The camera has learnt what time is.
    alone.push(range(200, 201), {})
    assert alone.ids(1) == [(200, 200)]


def test_extra_stamps_that_are_not_nanoseconds_lose_the_camera(both: Cameras, caplog: Log) -> None:
    both.push(range(100, 101), {})
    for index in range(200):
        both.extra.push(frame_of(index, 5 + index // 20))
    (pair,) = both.pairs(1)
    assert pair is not None
    assert pair.lacks_extra
    assert "wide camera: frames 0..59: expected start-of-frame stamps in nanosec" in caplog.text


def test_one_wrong_extra_stamp_stops_pairing_only_for_a_while(both: Cameras, caplog: Log) -> None:
    pairs: list[FramePair | None] = []
    for index in range(15):
        both.push({index: None}, {index: 1e9 if index == 0 else None})
        pairs += both.pairs(1)
    assert pairs[0] is not None
    assert pairs[0].apart
    # 300 ms for the stamp, 200 ms until the camera counts as back.
    assert pairs[1:6] == [None] * 5
    assert [pair is not None and pair.lacks_extra for pair in pairs[6:10]] == [True] * 4
    assert [ids(pair) for pair in pairs[10:]] == [(index, index) for index in range(10, 15)]
    assert all(pair is not None and not pair.lacks_extra and not pair.apart for pair in pairs[10:])
    assert "check its rate and that both cameras use one clock" in caplog.text


@pytest.mark.parametrize(
    ("sends", "offset_ms", "lacking", "lost"),
    [
        # It comes back after 15 frames.
        ([*range(5), *range(21, 30)], 2.0, [False] * 5 + [None] * 2 + [True] * 14 + [False] * 9, 1),
        # Lost again after two pairs, it must show four, whatever it showed before.
        (
            [*range(5), 21, 22, *range(36, 45)],
            2.0,
            [False] * 5
            + [None] * 2
            + [True] * 14
            + [False] * 2
            + [None] * 2
            + [True] * 14
            + [False] * 6,
            2,
        ),
        # Frames of another moment do not bring it back: a clock of its own, far ahead.
        (range(10, 30), 1e9, [None] * 2 + [True] * 28, 1),
    ],
)
def test_a_lost_extra_camera_is_done_without_until_frames_of_the_moment_come(
    sends: range | list[int],
    offset_ms: float,
    lacking: list[bool | None],
    lost: int,
    caplog: Log,
) -> None:
    both = Cameras(conflate=True)
    found: list[bool | None] = []
    for index in range(len(lacking)):
        extra: dict[int, float | None] = {index: index * 50 + offset_ms} if index in sends else {}
        both.push({index: None}, extra)
        (pair,) = both.pairs(1)
        # After 300 ms the newest main frame stands in for both.
        assert pair is None or pair.main.frame_id == index
        assert pair is None or (pair.extra is pair.main) is pair.lacks_extra
        found.append(None if pair is None else pair.lacks_extra)
    assert found == lacking
    assert both.count(Fault.CAMERA_LOST) == lost
    (said, *_) = [r.message for r in caplog.records if r.levelname == "ERROR"]
    assert "extra camera lost: none of its frames belongs to main frame" in said
    assert f"{lacking.index(True)} within 300 ms" in said


class LetGo(MemoryFrameSource):
    """A camera in lock step: each receive is let go on with the next frame, and uses it up."""

    def __init__(self) -> None:
        super().__init__(SMALL)
        self.received = 0

    def receive(self, timeout_ms: int) -> Frame | None:
        del timeout_ms
        self.received += 1
        return frame_of(self.received)


class Beside(MemoryFrameSource):
    """The other camera: it has sent what the first one has received, if it sends."""

    def __init__(self, main: LetGo, silent: range) -> None:
        super().__init__(SMALL)
        self.main, self.silent, self.taken = main, silent, 0

    def receive(self, timeout_ms: int) -> Frame | None:
        if self.taken == self.main.received:
            return None
        self.taken += 1
        return self.receive(timeout_ms) if self.taken in self.silent else frame_of(self.taken)


@pytest.mark.parametrize("silent", [None, range(0), range(5, 12), range(5, 100)])
def test_a_call_takes_one_frame_of_the_main_camera_at_most(silent: range | None) -> None:
    main = LetGo()
    sync = make_sync(main, None if silent is None else Beside(main, silent))
    for _ in range(30):
        before = main.received
        pair = sync.receive()
        assert main.received <= before + 1
        assert pair is None or pair.main.frame_id == main.received, "the newest one"


@pytest.mark.parametrize("streams", [("road",), ("road", "wideRoad")])
def test_a_second_drive_with_earlier_stamps_pairs_from_its_first_frame(
    tmp_path: Path, streams: tuple[str, ...]
) -> None:
    def open_rings() -> list[FrameRingWriter]:
        return [FrameRingWriter("sync", stream, SMALL, directory=tmp_path) for stream in streams]

    def write(writer: FrameRingWriter, index: int, start_ns: int) -> None:
        writer.next_buffer()[:] = index % 256
        sof_ns = start_ns + index * 50 * MS
        writer.publish(index, sof_ns, sof_ns + 10 * MS)

    writers = open_rings()
    readers = [
        FrameRingReader("sync", stream, conflate=stream == "road", directory=tmp_path)
        for stream in streams
    ]
    sync = make_sync(readers[0], readers[1] if len(readers) > 1 else None, timeout_ms=500)
    for begin, start_ns in ((0, 10**12), (700, 0)):
        for index in range(begin, begin + 3):
            for writer in reversed(writers):
                write(writer, index, start_ns)
            assert ids(sync.receive()) == (index, index)
        # The first drive ends between its two cameras: this frame stays in the ring.
        for writer in writers[1:]:
            write(writer, begin + 3, start_ns)
        for writer in writers:
            writer.close()
        writers = open_rings()
    for reader in readers:
        reader.close()
    for writer in writers:
        writer.close()


def test_is_intact_asks_both_cameras() -> None:
    class Overwritten(MemoryFrameSource):
        def is_intact(self) -> bool:
            return False

    good, bad = MemoryFrameSource(SMALL), Overwritten(SMALL)
    for main, extra, intact in (
        (good, None, True),
        (good, good, True),
        (bad, None, False),
        (good, bad, False),
    ):
        assert make_sync(main, extra).is_intact() is intact
