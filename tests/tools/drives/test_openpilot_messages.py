"""The messages of a drive: their order, their moments, and what older software wrote."""

import logging
import random
import struct
import warnings
from pathlib import Path

import pytest

from cereal.log_reader import read_log_bytes
from cereal.schema import log, read_event
from tests.tools.drives.segments import (
    PERIOD_NS,
    READOUT_NS,
    START_NS,
    Segment,
    Track,
    plain,
    sof_ns,
    state_ns,
    write_segment,
)
from tests.tools.messages import event_of
from tools.drives import log_events
from tools.drives.drive import KEPT_MOMENTS, Drive, Message
from tools.drives.open_drive import DriveOptions
from tools.drives.openpilot import open_drive
from tools.errors import DriveError
from tools.messages.event_bytes import EventHeader, read_header

ROUTE = "000001d4--2648a9a404"


def _open(root: Path, *segments: Segment) -> Drive:
    for segment in segments:
        write_segment(root / f"{ROUTE}--{segment.number}", segment)
    return open_drive(ROUTE, DriveOptions(data_dir=root))


def _messages(drive: Drive, first: int = 0) -> list[tuple[int, Message]]:
    try:
        return [(one.index, message) for one in drive.moments(first) for message in one.messages]
    finally:
        drive.close()


def _newer(time_ns: int) -> bytes:
    """Return an Event of a member that no schema has yet."""
    event = bytearray(event_of("carState", time_ns))
    offset = 2 * int(log.Event.schema.node.struct.discriminantOffset)
    event[16 + offset : 18 + offset] = (500).to_bytes(2, "little")
    return bytes(event)


# --- headers ---


@pytest.mark.parametrize("service", ["carState", "can", "logMessage", "livestreamAudio", "boot"])
def test_header_is_what_a_reader_says(service: str) -> None:
    assert read_header(event_of(service, 2**63 + 5)) == EventHeader(service, 2**63 + 5)


def test_header_of_an_event_whose_root_is_in_another_segment_and_of_a_newer_one() -> None:
    content = event_of("can", 7)[8:]
    frame = struct.pack("<4I", 1, 1, len(content) // 8, 0)
    # A far pointer: kind 2, to word 0 of segment 1, where the content has its own root pointer.
    far = struct.pack("<II", 2, 1)
    assert read_header(frame + far + content) == EventHeader("can", 7)
    assert read_header(_newer(99)) == EventHeader("unknown-500", 99)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 8, b"\0" * 16, b"\xff" * 64, b"\0\0\0\0\1\0\0\0" + b"\xff" * 8],
)
def test_header_of_damaged_bytes_is_none(data: bytes) -> None:
    assert read_header(data) is None


def test_headers_of_random_damage_agree_with_the_reader() -> None:
    good = event_of("carState", 1234567, vEgo=3.0)
    rng = random.Random(3)  # noqa: S311 - damage, no secret
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(8, 40)] = rng.randrange(256)
        header = read_header(bytes(data))
        if header is not None and not header.service.startswith("unknown"):
            event = read_event(bytes(data))
            assert (str(event.which()), event.logMonoTime) == header


# --- order and moments ---


def test_a_moment_ends_with_the_camera_states_of_its_frame(tmp_path: Path) -> None:
    drive = _open(tmp_path, plain(0))
    *moments, after = drive.moments()
    for moment in moments:
        assert [one.service for one in moment.messages[-1:]] == ["wideRoadCameraState"]
        services = {one.service for one in moment.messages}
        assert "roadCameraState" in services
        times = [one.mono_time_ns for one in moment.messages]
        assert times == sorted(times)
        assert times[-1] == state_ns("wideRoad", moment.index)
        assert read_event(moment.messages[-1].data).wideRoadCameraState.frameId == moment.index
    assert (after.index, after.frames) == (12, {})
    assert [one.service for one in after.messages][-2:] == ["wideRoadEncodeIdx", "sentinel"]
    drive.close()


def test_every_message_comes_once_and_those_of_a_boundary_at_it(tmp_path: Path) -> None:
    drive = _open(tmp_path, *(plain(number) for number in range(3)))
    found = [message.data for _, message in _messages(drive)]
    recorded = [
        data
        for number in range(3)
        for data in read_log_bytes(tmp_path / f"{ROUTE}--{number}" / "rlog.zst")
    ]
    assert sorted(found) == sorted(recorded)
    # Each file begins with the same initData, as old as the route: it stays where its file begins.
    kinds = [event.which() for event in map(read_event, found)]
    assert kinds.count("initData") == 3
    for at in (at for at, kind in enumerate(kinds) if kind == "initData"):
        assert str(read_event(found[at + 1]).sentinel.type).startswith("startOf")
    assert str(read_event(found[-1]).sentinel.type) == "endOfSegment"


@pytest.mark.parametrize("seed", range(4))
def test_neighbours_in_the_wrong_order_are_sorted(tmp_path: Path, seed: int) -> None:
    ordered = _messages(_open(tmp_path / "a", plain(0), plain(1)))

    def shuffle(rows: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        rng = random.Random(seed)  # noqa: S311 - an order, no secret
        # Each log begins with initData and sentinel, whatever comes then.
        keys = [(index + rng.uniform(0, 40), row) for index, row in enumerate(rows[2:])]
        return [*rows[:2], *(row for _, row in sorted(keys, key=lambda pair: pair[0]))]

    shuffled = _messages(
        _open(tmp_path / "b", plain(0, shuffle=shuffle), plain(1, shuffle=shuffle))
    )
    assert sorted(shuffled) == sorted(ordered)
    assert [one[1].mono_time_ns for one in shuffled] == [one[1].mono_time_ns for one in ordered]


def test_wild_times_hold_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three events of the year 2500 and three of time 0 among those of a drive."""
    monkeypatch.setattr(log_events, "WINDOW_EVENTS", 64)
    wild = tuple(
        (START_NS + number * PERIOD_NS, event_of("procLog", time_ns))
        for number, time_ns in enumerate([2**63, 0, 2**64 - 1, 0, 2**62, 0])
    )
    usual = _messages(_open(tmp_path / "a", plain(0)))
    found = _messages(_open(tmp_path / "b", plain(0, extra=wild)))
    assert [one for one in found if one[1].service != "procLog"] == usual
    times = [one[1].mono_time_ns for one in found if one[1].service == "procLog"]
    assert times == [0, 0, 0, 2**62, 2**63, 2**64 - 1]


@pytest.mark.parametrize("first", [1, 11, 12, 13, 25, 35, 36, 37])
def test_moments_from_a_number_on_are_the_same(tmp_path: Path, first: int) -> None:
    drive = _open(tmp_path, plain(0), plain(1), plain(2))
    whole = [row for row in _messages(drive) if row[0] >= first]
    assert _messages(drive, first) == whole


def test_the_same_files_give_the_same_moments_and_identity(tmp_path: Path) -> None:
    one, other = _open(tmp_path / "a", plain(0)), _open(tmp_path / "b", plain(0))
    assert _messages(one) == _messages(one) == _messages(other)
    assert one.info.identity == other.info.identity
    assert len(one.info.identity) == 64
    changed = _open(tmp_path / "c", plain(0, sensor="ox03c10"))
    assert changed.info.identity != one.info.identity


def test_buffers_are_filled_again_after_the_kept_moments(tmp_path: Path) -> None:
    drive = _open(tmp_path, plain(0, count=20))
    data = [moment.frames["road"].data for moment in drive.moments() if moment.frames]
    drive.close()
    for later in range(1, KEPT_MOMENTS):
        assert data[0] is not data[later]
    assert data[0] is data[KEPT_MOMENTS]


# --- what a drive says of itself ---


def test_info_is_read_from_the_messages(tmp_path: Path) -> None:
    info = _open(tmp_path, plain(3, first=100)).info
    assert (info.name, info.kind, info.moments, info.rate_hz) == (
        f"{ROUTE}--3",
        "openpilot",
        13,
        20.0,
    )
    assert info.cameras is None
    assert (info.mounting.device_type, info.mounting.sensor) == ("tici", "os04c10")
    assert info.mounting.rpy_rad == pytest.approx((0.0, 0.02, -0.01))
    assert info.mounting.height_m == pytest.approx(1.3)
    assert info.car_params is not None
    assert read_event(info.car_params).carParams.longitudinalActuatorDelay == 0.25
    assert info.facts["version"] == "0.10.0"
    assert info.facts["cameras"] == "road 64x48, wideRoad 64x48"
    assert "placement" not in info.facts


@pytest.mark.parametrize("name", ["rlog", "rlog.bz2", "rlog.zst"])
def test_log_of_any_codec(tmp_path: Path, name: str) -> None:
    assert _open(tmp_path, plain(0, log=name)).info.facts["logs"] == name


def test_small_log_is_taken_when_asked_for(tmp_path: Path) -> None:
    write_segment(tmp_path / f"{ROUTE}--0", plain(0, log="qlog.zst"))
    options = DriveOptions(data_dir=tmp_path)
    with pytest.raises(DriveError, match=r"expected a log, .* for the small log, .* add /q"):
        open_drive(f"{ROUTE}--0", options)
    for selector in "qai":
        assert open_drive(f"{ROUTE}--0/{selector}", options).info.moments == 13


# --- damaged logs ---


def test_cut_log_is_used_up_to_the_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The project's own log says so; a Python warning would be an error here."""
    # Logs are read in threads beside others, and what catches warnings is one for all threads.
    monkeypatch.setattr(warnings, "catch_warnings", None)
    path = write_segment(tmp_path / f"{ROUTE}--0", plain(0, log="rlog")) / "rlog"
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    with caplog.at_level(logging.WARNING):
        drive = open_drive(ROUTE, DriveOptions(data_dir=tmp_path))
    assert "kept the" in caplog.text
    count = drive.info.moments
    assert count is not None
    assert 4 < count < 10
    assert len({index for index, _ in _messages(drive)}) == count


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"BZh9nonsense", b"no log at all" * 9])
def test_what_is_no_log_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = write_segment(tmp_path / f"{ROUTE}--0", plain(0)) / "rlog.zst"
    path.write_bytes(content)
    with pytest.raises(DriveError, match=r"rlog.zst|expected camera states or EncodeIdx"):
        open_drive(ROUTE, DriveOptions(data_dir=tmp_path))


def test_unknown_members_pass_untouched(tmp_path: Path) -> None:
    event = _newer(START_NS + PERIOD_NS)
    found = _messages(_open(tmp_path, plain(0, extra=((START_NS + PERIOD_NS, event),))))
    assert [one.data for _, one in found if one.service == "unknown-500"] == [event]


# --- migrations ---


def test_todays_log_is_not_touched(tmp_path: Path) -> None:
    drive = _open(tmp_path, plain(0))
    assert "migrated" not in drive.info.facts
    recorded = set(read_log_bytes(tmp_path / f"{ROUTE}--0" / "rlog.zst"))
    assert {one.data for _, one in _messages(drive)} <= recorded


def test_missing_start_of_frame_is_18_ms_before_the_end(tmp_path: Path) -> None:
    ids = range(12)
    tracks = {name: Track(ids, has_starts=False) for name in ("road", "wideRoad")}
    drive = _open(tmp_path, Segment(0, tracks))
    assert "12 roadCameraState, 12 wideRoadCameraState" in drive.info.facts["migrated"]
    for moment in (one for one in drive.moments() if one.frames):
        end_ns = sof_ns("road", moment.index) + READOUT_NS
        frame = moment.frames["road"]
        assert (frame.timestamp_sof_ns, frame.timestamp_eof_ns) == (end_ns - 18_000_000, end_ns)
        (state,) = [one for one in moment.messages if one.service == "roadCameraState"]
        # What is passed on is the recorded one.
        assert read_event(state.data).roadCameraState.timestampSof == 0
        event = read_event(state.read_as)
        assert event.logMonoTime == state.mono_time_ns == state_ns("road", moment.index)
        assert event.roadCameraState.timestampSof == end_ns - 18_000_000
        assert (event.roadCameraState.frameId, str(event.roadCameraState.sensor)) == (
            moment.index,
            "os04c10",
        )
        assert event.valid
    drive.close()


def test_device_type_is_that_of_init_data(tmp_path: Path) -> None:
    drive = _open(tmp_path, plain(0, device="tizi", device_state_type="unknown"))
    assert drive.info.mounting.device_type == "tizi"
    assert "deviceState" in drive.info.facts["migrated"]
    states = [one for _, one in _messages(drive) if one.service == "deviceState"]
    assert {str(read_event(one.data).deviceState.deviceType) for one in states} == {"unknown"}
    assert {str(read_event(one.read_as).deviceState.deviceType) for one in states} == {"tizi"}


@pytest.mark.parametrize(("old", "new"), [(0, "uncalibrated"), (1, "calibrated"), (2, "invalid")])
def test_status_of_old_calibrations(tmp_path: Path, old: int, new: str) -> None:
    time_ns = START_NS + 3 * PERIOD_NS
    fields = {"calStatusDEPRECATED": old, "rpyCalib": [0.5, 0.25, 0.125]}
    event = event_of("liveCalibration", time_ns, **fields)
    drive = _open(tmp_path, plain(0, extra=((time_ns, event),)))
    (found,) = [
        read_event(one.read_as).liveCalibration
        for _, one in _messages(drive)
        if one.service == "liveCalibration" and one.mono_time_ns == time_ns
    ]
    assert str(found.calStatus) == new
    assert list(found.rpyCalib) == [0.5, 0.25, 0.125]


def test_all_other_fields_survive_a_migration(tmp_path: Path) -> None:
    time_ns, end_ns = state_ns("road", 5), sof_ns("road", 5) + READOUT_NS
    fields = {"frameId": 5, "timestampEof": end_ns, "requestId": 77, "temperaturesC": [1.5, 2.5]}
    event = event_of("roadCameraState", time_ns, **fields)
    track = Track(range(12), states=[one for one in range(12) if one != 5])
    moments = _messages(_open(tmp_path, Segment(0, {"road": track}, extra=((time_ns, event),))))
    (found,) = [
        read_event(one.read_as).roadCameraState
        for index, one in moments
        if one.service == "roadCameraState" and index == 5
    ]
    assert (found.requestId, list(found.temperaturesC)) == (77, [1.5, 2.5])
    assert found.timestampSof == found.timestampEof - 18_000_000
