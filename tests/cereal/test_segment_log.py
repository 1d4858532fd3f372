"""Segments as openpilot's logger writes them: directories, sentinels, the small log, rotation."""

import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from cereal.errors import LogError
from cereal.log_reader import LogTruncatedWarning, read_log, read_log_bytes
from cereal.log_writer import LogWriter
from cereal.schema import new_event
from cereal.segment_log import SegmentLogWriter, init_data_event

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


def log(path: Path, name: str = "rlog") -> list[Any]:
    return list(read_log(path / f"{name}.zst"))


def names(events: list[Any]) -> list[str]:
    return [str(one.which()) for one in events]


def sentinels(events: list[Any]) -> list[tuple[str, int]]:
    return [
        (str(one.sentinel.type), one.sentinel.signal) for one in events if one.which() == "sentinel"
    ]


def segments(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


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
    assert events[0].initData.version == "1.2.3"


def test_each_segment_begins_with_the_same_init_data(tmp_path: Path) -> None:
    with SegmentLogWriter(tmp_path, ROUTE, INIT) as writer:
        for number in range(3):
            writer.write(event("carState", number))
            if number < 2:
                writer.rotate()
    assert segments(tmp_path) == [f"{ROUTE}--{n}" for n in range(3)]
    found = [sentinels(log(tmp_path / name)) for name in segments(tmp_path)]
    assert found == [
        [("startOfRoute", 0), ("endOfSegment", 0)],
        [("startOfSegment", 0), ("endOfSegment", 0)],
        [("startOfSegment", 0), ("endOfRoute", 0)],
    ]
    for name in segments(tmp_path):
        for log_name in ("rlog.zst", "qlog.zst"):
            assert next(iter(read_log_bytes(tmp_path / name / log_name))) == INIT


def test_small_log_takes_every_nth_and_goes_on_counting(tmp_path: Path) -> None:
    # carState: every tenth. Segment 0 holds 0..14, segment 1 the rest: 20 is its first in the qlog.
    with SegmentLogWriter(tmp_path, ROUTE, INIT) as writer:
        for number in range(35):
            if number == 15:
                writer.rotate()
            writer.write(event("carState", number * 0.01, vEgo=float(number)))
            writer.write(event("modelV2", number * 0.01))  # none of it
            writer.write(event("deviceState", number * 0.01))  # all of it
    small = [log(tmp_path / name, "qlog") for name in segments(tmp_path)]
    speeds = [[one.carState.vEgo for one in part if one.which() == "carState"] for part in small]
    assert speeds == [[0.0, 10.0], [20.0, 30.0]]
    assert [names(part).count("deviceState") for part in small] == [15, 20]
    assert [names(part).count("modelV2") for part in small] == [0, 0]
    assert [sentinels(part)[-1][0] for part in small] == ["endOfSegment", "endOfRoute"]
    whole = [names(log(tmp_path / name)) for name in segments(tmp_path)]
    assert [part.count("modelV2") for part in whole] == [15, 20]


def test_frame_indices_go_to_both_logs(tmp_path: Path) -> None:
    with SegmentLogWriter(tmp_path, ROUTE, INIT) as writer:
        for number in range(20):
            writer.write(event("roadEncodeIdx", number * 0.05, segmentId=number))
            writer.write(event("qRoadEncodeIdx", number * 0.05, segmentId=number))
    for name in ("rlog", "qlog"):
        found = names(log(tmp_path / f"{ROUTE}--0", name))
        assert (found.count("roadEncodeIdx"), found.count("qRoadEncodeIdx")) == (20, 20)


def test_driver_monitoring_of_2026_counts_as_its_service(tmp_path: Path) -> None:
    with SegmentLogWriter(tmp_path, ROUTE, INIT) as writer:
        for number in range(20):
            writer.write(event("driverMonitoringStateV2", number * 0.05))
    found = names(log(tmp_path / f"{ROUTE}--0", "qlog"))
    assert found.count("driverMonitoringStateV2") == 2


def test_without_video_a_segment_lasts_a_minute(tmp_path: Path) -> None:
    with SegmentLogWriter(tmp_path, ROUTE, INIT) as writer:
        for number in range(130):
            writer.write(event("carState", 1000 + number))
    times = [
        [one.logMonoTime // SECOND_NS for one in log(tmp_path / name) if one.which() == "carState"]
        for name in segments(tmp_path)
    ]
    assert [(part[0], part[-1]) for part in times] == [(1000, 1059), (1060, 1119), (1120, 1129)]


def test_video_decides_where_a_segment_ends(tmp_path: Path) -> None:
    """Three encoders roll one after the other; a frame is in the log of its video file."""
    with SegmentLogWriter(tmp_path, ROUTE, INIT) as writer:
        for frame in range(3 * 1200):
            for shift, service in enumerate(
                ("roadEncodeIdx", "wideRoadEncodeIdx", "qRoadEncodeIdx")
            ):
                # The clocks are not exact: 1200 frames take a little less than a minute here.
                time_s = frame * 0.0499 + shift * 0.01
                writer.write(
                    event(service, time_s, frameId=frame, segmentNum=frame // 1200,
                          segmentId=frame % 1200)
                )  # fmt: skip
                writer.write(event("carState", time_s + 0.005))
    assert segments(tmp_path) == [f"{ROUTE}--{n}" for n in range(3)]
    for number in range(3):
        events = log(tmp_path / f"{ROUTE}--{number}")
        for service in ENCODERS:
            frames = [getattr(one, service) for one in events if one.which() == service]
            assert [one.segmentId for one in frames] == list(range(1200))
            assert {one.segmentNum for one in frames} == {number}
    total = [names(log(tmp_path / name)).count("carState") for name in segments(tmp_path)]
    assert sum(total) == 3 * 3 * 1200


def test_video_that_stops_does_not_hold_a_segment(tmp_path: Path) -> None:
    with SegmentLogWriter(tmp_path, ROUTE, INIT) as writer:
        for number in range(1400):
            time_s = number * 0.05
            if time_s < 30:
                writer.write(event("roadEncodeIdx", time_s))
            writer.write(event("carState", time_s))
    assert len(segments(tmp_path)) == 2
    assert names(log(tmp_path / f"{ROUTE}--1")).count("carState") == 200


def test_encoder_that_never_rolls_holds_a_segment_for_72_seconds(tmp_path: Path) -> None:
    with SegmentLogWriter(tmp_path, ROUTE, INIT) as writer:
        for number in range(1500):
            writer.write(event("roadEncodeIdx", number * 0.05, segmentNum=0))
    counts = [names(log(tmp_path / name)).count("roadEncodeIdx") for name in segments(tmp_path)]
    assert counts == [1440, 60]


def test_a_recording_may_begin_at_any_number_of_the_encoders(tmp_path: Path) -> None:
    with SegmentLogWriter(tmp_path, ROUTE, INIT, first_segment=2) as writer:
        for number in range(40):
            writer.write(event("roadEncodeIdx", number * 0.05, segmentNum=7 + number // 20))
    assert segments(tmp_path) == [f"{ROUTE}--2", f"{ROUTE}--3"]
    assert sentinels(log(tmp_path / f"{ROUTE}--2"))[0] == ("startOfSegment", 0)
    assert [names(log(tmp_path / n)).count("roadEncodeIdx") for n in segments(tmp_path)] == [20, 20]


def test_same_events_give_the_same_segments(tmp_path: Path) -> None:
    for root in ("a", "b"):
        with SegmentLogWriter(tmp_path / root, ROUTE, INIT, open_sink=LogWriter) as writer:
            for number in range(130):
                writer.write(event("carState", number))
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


def test_full_disk_is_told_and_what_was_flushed_stays(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = SegmentLogWriter(tmp_path, ROUTE, INIT)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(LogError, match="free some disk space"):
            _fill(writer)
        writer.discard()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.warns(LogTruncatedWarning):
        assert names(log(writer.directory))[:2] == ["initData", "sentinel"]
    assert not (writer.directory / "rlog.lock").exists()


def _fill(writer: SegmentLogWriter) -> None:
    for number in range(1000):
        writer.write(event("modelV2", number * 0.05, rawPredictions=os.urandom(5000)))


def test_segment_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    with SegmentLogWriter(tmp_path, ROUTE, INIT) as writer:
        writer.write(event("carState", 1))
    with pytest.raises(LogError, match="File exists; choose another route"):
        SegmentLogWriter(tmp_path, ROUTE, INIT)
    assert names(log(tmp_path / f"{ROUTE}--0")).count("carState") == 1


@pytest.mark.parametrize("route", ["", "a/b", ".."])
def test_route_must_be_a_name(route: str, tmp_path: Path) -> None:
    with pytest.raises(LogError, match="the name of a route"):
        SegmentLogWriter(tmp_path, route, INIT)


def test_first_event_must_be_init_data(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"expected an initData Event .* got carState"):
        SegmentLogWriter(tmp_path, ROUTE, event("carState", 0))
    with pytest.raises(LogError, match="truncated"):
        SegmentLogWriter(tmp_path, ROUTE, b"none")
    assert list(tmp_path.iterdir()) == []
