"""Segments as openpilot's logger writes them: directories, sentinels, the small log, rotation."""

import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cereal.errors import LogError
from cereal.log_reader import LogTruncatedWarning, read_log, read_log_bytes
from cereal.log_writer import LogWriter
from cereal.schema import new_event
from cereal.segment_log import SegmentLogWriter, init_data_event
from tests.cereal.shared import largest_file, model_event

SECOND_NS = 1_000_000_000
ENCODERS = ("roadEncodeIdx", "wideRoadEncodeIdx", "qRoadEncodeIdx")
ROUTE = "00000001--0123456789"
INIT = init_data_event(mono_time_ns=0, wall_time_ns=1_700_000_000 * SECOND_NS, version="1.2.3")


def event(service: str, time_s: float, **fields: Any) -> bytes:
    built = new_event(service, mono_time_ns=round(time_s * SECOND_NS), valid=True)
    message = getattr(built, service)
    for name, value in fields.items():
        setattr(message, name, value)
    return bytes(built.to_bytes())


def record(root: Path, events: Iterable[bytes], **options: Any) -> None:
    with SegmentLogWriter(root, ROUTE, INIT, **options) as writer:
        for data in events:
            writer.write(data)


def log(path: Path, name: str = "rlog") -> list[Any]:
    return list(read_log(path / f"{name}.zst"))


def names(events: list[Any]) -> list[str]:
    return [str(one.which()) for one in events]


def sentinels(events: list[Any]) -> list[tuple[str, int]]:
    found = (one.sentinel for one in events if one.which() == "sentinel")
    return [(str(one.type), one.signal) for one in found]


def segments(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def counts(root: Path, service: str, name: str = "rlog") -> list[int]:
    """Return how many messages of a service each segment has."""
    return [names(log(root / segment, name)).count(service) for segment in segments(root)]


def test_segment_begins_and_ends_as_the_logger_has_it(tmp_path: Path) -> None:
    with SegmentLogWriter(tmp_path / "realdata", ROUTE, INIT) as writer:
        directory = writer.directory
        assert (directory / "rlog.lock").exists()
        writer.write(event("carState", 1, vEgo=3.0))
    assert directory == tmp_path / "realdata" / f"{ROUTE}--0"
    assert sorted(path.name for path in directory.iterdir()) == ["qlog.zst", "rlog.zst"]
    events = log(directory)
    assert names(events) == ["initData", "sentinel", "carState", "sentinel"]
    assert sentinels(events) == [("startOfRoute", 0), ("endOfRoute", 0)]
    assert [one.logMonoTime for one in events] == [0, 0, SECOND_NS, SECOND_NS]
    assert all(one.valid for one in events)
    data = events[0].initData
    assert (data.version, str(data.deviceType)) == ("1.2.3", "pc")
    assert data.wallTimeNanos == 1_700_000_000 * SECOND_NS


def test_small_log_takes_every_nth_and_goes_on_counting(tmp_path: Path) -> None:
    # carState: every tenth. Segment 0 holds 0..14, segment 1 the rest: 20 is its first in the qlog.
    with SegmentLogWriter(tmp_path, ROUTE, INIT) as writer:
        for number in range(45):
            if number in (15, 35):
                writer.rotate()
            writer.write(event("carState", number * 0.01, vEgo=float(number)))
            writer.write(event("modelV2", number * 0.01))  # none of it
            writer.write(event("deviceState", number * 0.01))  # all of it
            writer.write(event("driverMonitoringStateV2", number * 0.01))  # as the service has it
            writer.write(event("roadEncodeIdx", number * 0.01))  # frame indices go to both
    assert segments(tmp_path) == [f"{ROUTE}--{n}" for n in range(3)]
    small = [log(tmp_path / name, "qlog") for name in segments(tmp_path)]
    speeds = [[one.carState.vEgo for one in part if one.which() == "carState"] for part in small]
    assert speeds == [[0.0, 10.0], [20.0, 30.0], [40.0]]
    found = [counts(tmp_path, service, "qlog") for service in ("deviceState", "roadEncodeIdx")]
    assert found == [[15, 20, 10]] * 2
    assert counts(tmp_path, "driverMonitoringStateV2", "qlog") == [2, 2, 1]
    assert counts(tmp_path, "modelV2", "qlog") == [0, 0, 0]
    assert counts(tmp_path, "modelV2") == counts(tmp_path, "roadEncodeIdx") == [15, 20, 10]
    kinds = [
        [("startOfRoute", 0), ("endOfSegment", 0)],
        [("startOfSegment", 0), ("endOfSegment", 0)],
        [("startOfSegment", 0), ("endOfRoute", 0)],
    ]
    for file in ("rlog", "qlog"):
        assert [sentinels(log(tmp_path / name, file)) for name in segments(tmp_path)] == kinds
        for name in segments(tmp_path):
            assert next(iter(read_log_bytes(tmp_path / name / f"{file}.zst"))) == INIT


def test_without_video_a_segment_lasts_a_minute(tmp_path: Path) -> None:
    record(tmp_path, (event("carState", 1000 + number) for number in range(130)))
    times = [
        [one.logMonoTime // SECOND_NS for one in log(tmp_path / name) if one.which() == "carState"]
        for name in segments(tmp_path)
    ]
    assert [(part[0], part[-1]) for part in times] == [(1000, 1059), (1060, 1119), (1120, 1129)]


@pytest.mark.parametrize("frames", [40, pytest.param(1200, marks=pytest.mark.slow)])
def test_video_decides_where_a_segment_ends(frames: int, tmp_path: Path) -> None:
    """Three encoders roll one after the other; a frame is in the log of its video file."""

    def events() -> Iterable[bytes]:
        for frame in range(3 * frames):
            for shift, service in enumerate(ENCODERS):
                # The clocks are not exact: 1200 frames take a little less than a minute here.
                time_s = frame * 0.0499 + shift * 0.01
                part, number = divmod(frame, frames)
                yield event(service, time_s, frameId=frame, segmentNum=part, segmentId=number)
                yield event("carState", time_s + 0.005)

    record(tmp_path, events())
    assert segments(tmp_path) == [f"{ROUTE}--{n}" for n in range(3)]
    for part in range(3):
        found = log(tmp_path / f"{ROUTE}--{part}")
        for service in ENCODERS:
            indices = [getattr(one, service) for one in found if one.which() == service]
            assert [one.segmentId for one in indices] == list(range(frames))
            assert {one.segmentNum for one in indices} == {part}
    assert sum(counts(tmp_path, "carState")) == 3 * 3 * frames


@pytest.mark.parametrize(
    ("video_s", "expected"),
    [
        (30, [1200, 200]),  # the drive goes on after a minute
        (59.8, [1205, 195]),  # after half a second without a frame
        (70, [1400]),
    ],
)
def test_stopped_video_holds_no_segment(
    video_s: float, expected: list[int], tmp_path: Path
) -> None:
    def events() -> Iterable[bytes]:
        for number in range(1400):
            if number * 0.05 < video_s - 0.001:
                yield event("roadEncodeIdx", number * 0.05)
            yield event("carState", number * 0.05)

    record(tmp_path, events())
    assert counts(tmp_path, "carState") == expected


def test_encoder_that_never_rolls_holds_a_segment_for_72_seconds(tmp_path: Path) -> None:
    record(tmp_path, (event("roadEncodeIdx", n * 0.05, segmentNum=0) for n in range(1500)))
    assert counts(tmp_path, "roadEncodeIdx") == [1440, 60]


def test_frames_wait_for_another_encoder_up_to_a_bound(tmp_path: Path) -> None:
    waits = [event("roadEncodeIdx", 1 + n * 0.01, segmentNum=1) for n in range(801)]
    first = [event(service, 0.5, segmentNum=0) for service in ENCODERS[:2]]
    record(tmp_path / "all but one", [*first, *waits[:-1]])
    assert counts(tmp_path / "all but one", "roadEncodeIdx") == [801]
    record(tmp_path / "one too many", [*first, *waits])
    assert counts(tmp_path / "one too many", "roadEncodeIdx") == [1, 801]


def test_a_recording_may_begin_at_any_number_of_the_encoders(tmp_path: Path) -> None:
    frames = (event("roadEncodeIdx", n * 0.05, segmentNum=7 + n // 20) for n in range(40))
    record(tmp_path, frames, first_segment=2)
    assert segments(tmp_path) == [f"{ROUTE}--2", f"{ROUTE}--3"]
    assert sentinels(log(tmp_path / f"{ROUTE}--2"))[0] == ("startOfSegment", 0)
    assert counts(tmp_path, "roadEncodeIdx") == [20, 20]


def test_same_events_give_the_same_segments(tmp_path: Path) -> None:
    for root in ("a", "b"):
        events = (event("carState", number) for number in range(130))
        record(tmp_path / root, events, open_sink=LogWriter)
    for name in segments(tmp_path / "a"):
        for file in ("rlog.zst", "qlog.zst"):
            first, second = (tmp_path / root / name / file for root in ("a", "b"))
            assert first.read_bytes() == second.read_bytes()


def test_ctrl_c_ends_the_route_with_its_signal(tmp_path: Path) -> None:
    writer = SegmentLogWriter(tmp_path, ROUTE, INIT)
    writer.write(event("carState", 1))
    writer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert sentinels(log(writer.directory))[-1] == ("endOfRoute", int(signal.SIGINT))
    assert not (writer.directory / "rlog.lock").exists()


def test_error_leaves_what_was_recorded(tmp_path: Path) -> None:
    writer = SegmentLogWriter(tmp_path, ROUTE, INIT)
    writer.write(event("carState", 1))
    writer.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert names(log(writer.directory)) == ["initData", "sentinel", "carState"]
    assert not (writer.directory / "rlog.lock").exists()
    with pytest.raises(LogError, match="closed"):
        writer.write(event("carState", 2))
    writer.close()


def test_atomic_segments_are_whole_or_not_there(tmp_path: Path) -> None:
    writer = SegmentLogWriter(tmp_path, ROUTE, INIT, open_sink=LogWriter)
    writer.write(event("carState", 1))
    writer.rotate()
    writer.write(event("carState", 2))
    writer.discard()
    assert segments(tmp_path) == [f"{ROUTE}--0"]
    assert sentinels(log(tmp_path / f"{ROUTE}--0"))[-1] == ("endOfSegment", 0)


def fill(writer: SegmentLogWriter) -> None:
    for number in range(1000):
        writer.write(model_event(number * SECOND_NS // 20, noise=5000))


def test_full_disk_is_told_and_what_was_flushed_stays(tmp_path: Path) -> None:
    writer = SegmentLogWriter(tmp_path, ROUTE, INIT)
    with largest_file(200_000):
        with pytest.raises(LogError, match="free some disk space"):
            fill(writer)
        writer.discard()
    with pytest.warns(LogTruncatedWarning):
        assert names(log(writer.directory))[:2] == ["initData", "sentinel"]
    assert not (writer.directory / "rlog.lock").exists()


def test_what_cannot_be_begun_is_refused(tmp_path: Path) -> None:
    for route in ("", "a/b", "..", ".", "a\0b"):
        with pytest.raises(LogError, match="the name of a route"):
            SegmentLogWriter(tmp_path, route, INIT)
    with pytest.raises(LogError, match=r"expected an initData Event .* got carState"):
        SegmentLogWriter(tmp_path, ROUTE, event("carState", 0))
    with pytest.raises(LogError, match="truncated"):
        SegmentLogWriter(tmp_path, ROUTE, b"none")
    assert list(tmp_path.iterdir()) == []
    record(tmp_path, [event("carState", 1)])
    with pytest.raises(LogError, match="File exists; choose another route"):
        SegmentLogWriter(tmp_path, ROUTE, INIT)
    assert counts(tmp_path, "carState") == [1]
