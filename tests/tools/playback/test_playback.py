"""Deterministic replay: the daemon over drives with gaps, one camera or two, twice the same."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.frames import Frame, nv12_format
from cereal.log_reader import read_log, read_log_bytes
from cereal.schema import new_event, read_event
from modeld.inputs import DEMO_CAR
from tests.tools.conftest import SIZE
from tests.tools.playback.synthetic_drive import START_NS, SyntheticDrive, brightness
from tests.tools.tiny_driving import write_tiny_driving
from tools.drives.drive import KEPT_MOMENTS, Message, Moment
from tools.errors import ArtifactMismatchError, DriveError
from tools.lib.drive_log import OUTPUT_SERVICES
from tools.playback.frame_table import frames_path, load_frames, save_frames
from tools.playback.log_thread import LogThread
from tools.playback.model import LoadedModel, load_model
from tools.playback.outcome import Outcome
from tools.playback.prefetch import DEPTH, prefetch
from tools.playback.run_drive import PlaybackOptions, play, run_drive
from tools.playback.session import PROCESSING_NS, PlaybackSession, PlaybackSource, car_of

pytestmark = pytest.mark.opencl


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Iterator[LoadedModel]:
    with load_model(tiny_model) as loaded:
        yield loaded


def _run(
    tmp_path: Path, model: LoadedModel, drive: SyntheticDrive, **options: Any
) -> tuple[Outcome, list[Any]]:
    outcome = run_drive(drive, model, tmp_path / "o.rlog", PlaybackOptions(**options))
    return outcome, list(read_log(outcome.log))


def _models(events: list[Any]) -> list[Any]:
    return [event for event in events if event.which() == "modelV2"]


# --- what is in the log ---------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [("road",), ("road", "wideRoad"), ("wideRoad",)])
def test_each_frame_gives_three_messages_in_time_order(
    tmp_path: Path, model: LoadedModel, streams: tuple[str, ...]
) -> None:
    outcome, events = _run(tmp_path, model, SyntheticDrive(streams=streams))
    for name in OUTPUT_SERVICES:
        said = [event for event in events if event.which() == name]
        assert [getattr(event, name).frameId for event in said] == list(range(12))
        assert all(event.valid for event in said)
    stamps = [event.logMonoTime for event in events]
    assert stamps == sorted(stamps)
    for event in _models(events):
        assert event.logMonoTime == event.modelV2.timestampEof + PROCESSING_NS
        assert event.modelV2.modelExecutionTime == 0.0
    frames = outcome.frames
    assert frames.moment.tolist() == frames.frame_id.tolist() == list(range(12))
    assert frames.published.all()
    assert frames.valid.all()
    assert (frames.execution_s > 0).all()
    assert outcome.peak_rss_bytes > 0
    assert outcome.artifact_sha256 == model.artifact.sha256


def test_recorded_messages_are_kept_as_they_are_but_for_those_of_the_daemon(
    tmp_path: Path, model: LoadedModel
) -> None:
    drive = SyntheticDrive(recorded_model=True)
    outcome, events = _run(tmp_path, model, drive)
    assert [event.modelV2.frameId for event in _models(events)] == list(range(12))
    written = [
        d for d in read_log_bytes(outcome.log) if read_event(d).which() not in OUTPUT_SERVICES
    ]
    recorded = [m.data for moment in drive.moments() for m in moment.messages]
    assert written == [d for d in recorded if read_event(d).which() != "modelV2"]


def test_messages_up_to_the_camera_state_are_seen_by_the_frame(model: LoadedModel) -> None:
    # The car's speed is 7 between the frames and 12 with each: the newest one counts.
    seen: list[float] = []
    drive = SyntheticDrive(count=3)
    session = PlaybackSession(PlaybackOptions().config, model.program, drive.info, lambda _: None)
    for moment in drive.moments():
        session.step(moment)
        messages = session.daemon._messages
        seen.append(messages["carState"].vEgo)
        assert messages["roadCameraState"].frameId == moment.index
    session.close()
    model.program.reset()
    assert seen == [12.0] * 3


def test_driver_monitoring_of_either_generation_reaches_the_daemon(model: LoadedModel) -> None:
    drive = SyntheticDrive(count=1)
    session = PlaybackSession(PlaybackOptions().config, model.program, drive.info, lambda _: None)
    seen = []
    for member in ("driverMonitoringState", "driverMonitoringStateV2"):
        for is_rhd in (True, False):
            event = new_event(member, mono_time_ns=START_NS, valid=True)
            getattr(event, member).isRHD = is_rhd
            message = Message(member, START_NS, event.to_bytes())
            session.step(Moment(0, (message,), {}))
            session.daemon._messages.update(0)
            seen.append(session.daemon._messages["driverMonitoringState"].isRHD)
    session.close()
    assert seen == [True, False, True, False]


def test_car_is_that_of_the_drive() -> None:
    assert car_of(SyntheticDrive().info) is DEMO_CAR
    car = car_of(SyntheticDrive(car_delay_s=0.25).info)
    assert car.longitudinal_actuator_delay_s == pytest.approx(0.25)


# --- twice the same -------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["rlog", "rlog.zst"])
def test_two_runs_are_the_same_bytes(tmp_path: Path, model: LoadedModel, suffix: str) -> None:
    drive = SyntheticDrive(
        count=30, streams=("road", "wideRoad"), missing=frozenset({(4, "road"), (9, "wideRoad")})
    )
    logs = [tmp_path / f"{name}.{suffix}" for name in ("a", "b")]
    for log in logs:
        run_drive(drive, model, log)
    assert logs[0].read_bytes() == logs[1].read_bytes()
    other = tmp_path / f"c.{suffix}"
    run_drive(SyntheticDrive(count=30, streams=("road", "wideRoad")), model, other)
    assert other.read_bytes() != logs[0].read_bytes()


def test_digests_are_those_of_the_inputs_and_change_nothing_else(
    tmp_path: Path, model: LoadedModel
) -> None:
    drive = SyntheticDrive(streams=("road", "wideRoad"), missing=frozenset({(5, "road")}))
    plain, _ = _run(tmp_path, model, drive)
    before = plain.log.read_bytes()
    outcome, _ = _run(tmp_path, model, drive, digest_inputs=True)
    assert outcome.log.read_bytes() == before
    assert plain.frames.input_crc == {}
    crc, ids = outcome.frames.input_crc, outcome.frames.frame_id
    payload = nv12_format(*SIZE).payload_bytes
    for stream, name in (("road", "road_frame"), ("wideRoad", "wide_frame")):
        expected = [zlib.crc32(bytes([brightness(int(i), stream)]) * payload) for i in ids]
        assert crc[name].tolist() == expected
    # Frame 6 follows a dropped one: only queues advance, and that takes no traffic convention.
    convention = zlib.crc32(np.array([[1, 0]], np.float32).tobytes())
    assert crc["traffic_convention"].tolist() == [0 if i == 6 else convention for i in ids]
    assert len(set(crc["road_transform"].tolist())) == 1


# --- gaps -----------------------------------------------------------------------------------------


def _missing(*pairs: tuple[int, str]) -> SyntheticDrive:
    return SyntheticDrive(streams=("road", "wideRoad"), missing=frozenset(pairs))


def test_missing_moment_is_a_drop(tmp_path: Path, model: LoadedModel) -> None:
    for drive in (
        _missing((4, "road"), (4, "wideRoad")),
        _missing((4, "road")),
        SyntheticDrive(missing=frozenset({(4, "road")})),
    ):
        outcome, events = _run(tmp_path, model, drive)
        frames = outcome.frames
        assert frames.frame_id.tolist() == [0, 1, 2, 3, *range(5, 12)]
        assert frames.dropped.tolist() == [0] * 4 + [1] + [0] * 6
        assert frames.published.tolist() == [True] * 4 + [False] + [True] * 6
        ids = [event.modelV2.frameId for event in _models(events)]
        assert ids == [0, 1, 2, 3, *range(6, 12)]


def test_missing_wide_frame_pairs_as_live(tmp_path: Path, model: LoadedModel) -> None:
    outcome, events = _run(tmp_path, model, _missing((4, "wideRoad")), digest_inputs=True)
    # The daemon waits with frame 4 until a wide frame comes, which is that of moment 5; then frame
    # 5 has no partner, and 6 comes after a drop.
    assert outcome.frames.moment.tolist() == [0, 1, 2, 3, *range(5, 12)]
    assert outcome.frames.frame_id.tolist() == [0, 1, 2, 3, 4, *range(6, 12)]
    pairs = [(e.modelV2.frameId, e.modelV2.frameIdExtra) for e in _models(events)]
    assert pairs == [*((i, i) for i in range(4)), (4, 5), *((i, i) for i in range(7, 12))]
    payload = nv12_format(*SIZE).payload_bytes
    for name, stream, expected in (("road_frame", "road", 4), ("wide_frame", "wideRoad", 5)):
        crc = zlib.crc32(bytes([brightness(expected, stream)]) * payload)
        assert outcome.frames.input_crc[name][4] == crc


def test_frame_that_waits_is_not_overwritten(tmp_path: Path, model: LoadedModel) -> None:
    drive = _missing((3, "wideRoad"), (4, "wideRoad"))
    outcome, _ = _run(tmp_path, model, drive, digest_inputs=True)
    row = outcome.frames.frame_id.tolist().index(3)
    assert outcome.frames.moment[row] == 5
    crc = zlib.crc32(bytes([brightness(3, "road")]) * nv12_format(*SIZE).payload_bytes)
    assert outcome.frames.input_crc["road_frame"][row] == crc


def test_wide_camera_that_is_lost_for_a_while(tmp_path: Path, model: LoadedModel) -> None:
    """Three moments are waited for, then the road camera goes on alone, invalid (ADR 0081)."""
    away = [(index, "wideRoad") for index in range(3, 3 + KEPT_MOMENTS + 4)]
    back = 3 + KEPT_MOMENTS + 4
    drive = SyntheticDrive(count=20, streams=("road", "wideRoad"), missing=frozenset(away))
    outcome, events = _run(tmp_path, model, drive)
    assert outcome.frames.moment.tolist() == [0, 1, 2, *range(5, 20)]
    models = _models(events)
    assert [event.modelV2.frameId for event in models] == [0, 1, 2, *range(6, 20)]
    assert all(event.modelV2.frameIdExtra == event.modelV2.frameId for event in models)
    invalid = [event.modelV2.frameId for event in models if not event.valid]
    assert [index for index in invalid if index > 2] == list(range(6, back))


def test_road_camera_that_never_comes_gives_nothing_and_keeps_little(
    tmp_path: Path, model: LoadedModel
) -> None:
    outcome, events = _run(tmp_path, model, _missing(*((index, "road") for index in range(12))))
    assert outcome.frames.moment.size == 0
    assert _models(events) == []
    assert len(events) > 12


def test_wide_camera_that_never_comes_leaves_the_road_camera(
    tmp_path: Path, model: LoadedModel
) -> None:
    drive = _missing(*((index, "wideRoad") for index in range(12)))
    outcome, events = _run(tmp_path, model, drive)
    assert outcome.frames.moment.tolist() == list(range(2, 12))
    assert not any(event.valid for event in _models(events))


def test_source_delivers_as_a_ring_does() -> None:
    layout = nv12_format(*SIZE)
    frames = [Frame(np.full(layout.size, i, np.uint8), layout, i, i, i) for i in range(9)]
    newest, all_of_them = (PlaybackSource(layout, conflate=c) for c in (True, False))
    for frame in frames:
        newest.push(frame)
        all_of_them.push(frame)
    assert [f.frame_id for f in iter(lambda: newest.receive(0), None)] == [8]
    assert [f.frame_id for f in iter(lambda: all_of_them.receive(0), None)] == list(range(3, 9))


# --- errors and limits ----------------------------------------------------------------------------


def test_damaged_drive_leaves_nothing_and_the_program_goes_on(
    tmp_path: Path, model: LoadedModel
) -> None:
    good = run_drive(SyntheticDrive(), model, tmp_path / "good.rlog").log.read_bytes()
    before = sorted(tmp_path.iterdir())
    drive = SyntheticDrive(damaged_at=7)
    with pytest.raises(DriveError, match="found 7"):
        run_drive(drive, model, tmp_path / "bad.rlog")
    assert sorted(tmp_path.iterdir()) == before
    assert drive.opened == [1, 1]
    # Nothing of the broken drive is left in the program's states.
    assert run_drive(SyntheticDrive(), model, tmp_path / "x.rlog").log.read_bytes() == good


def test_limit_stops_before_the_damage(tmp_path: Path, model: LoadedModel) -> None:
    outcome, _ = _run(tmp_path, model, SyntheticDrive(damaged_at=7), limit=7)
    assert outcome.frames.moment.tolist() == list(range(7))


def test_callback_sees_each_moment(tmp_path: Path, model: LoadedModel) -> None:
    seen: list[tuple[int, bool]] = []
    _run(
        tmp_path,
        model,
        _missing((2, "road")),
        on_moment=lambda moment, result: seen.append((moment.index, result is not None)),
    )
    assert seen == [(index, index != 2) for index in range(12)]


@pytest.mark.parametrize("size", [(64, 32), (128, 96), (96, 128)])
def test_frames_of_any_size_that_fits_are_taken(
    tmp_path: Path, model: LoadedModel, size: tuple[int, int]
) -> None:
    outcome = run_drive(SyntheticDrive(size=size), model, tmp_path / "o.rlog")
    assert outcome.frames.published.all()


def test_frames_too_large_for_the_artifact_are_refused_before_decoding(
    tmp_path: Path, model: LoadedModel
) -> None:
    drive = SyntheticDrive(size=(320, 240))
    with pytest.raises(ArtifactMismatchError, match=r"found 320x240 with.*--camera 320x240"):
        run_drive(drive, model, tmp_path / "o.rlog")
    assert drive.opened == [0, 0]
    assert list(tmp_path.iterdir()) == []


def test_full_disk_leaves_neither_log_nor_table(
    tmp_path: Path, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cereal.errors import LogError
    from cereal.log_writer import LogWriter

    def full(self: LogWriter) -> None:
        self.discard()
        raise LogError("o.rlog: expected to finish the log, got No space left on device")

    monkeypatch.setattr(LogWriter, "close", full)
    with pytest.raises(LogError, match="No space"):
        run_drive(SyntheticDrive(), model, tmp_path / "o.rlog")
    assert list(tmp_path.iterdir()) == []


def test_non_finite_outputs_are_not_valid(tmp_path: Path) -> None:
    path = write_tiny_driving(tmp_path / "bad.pkl", SIZE, bad_frame=4)
    with load_model(path) as bad:
        table, _ = play(SyntheticDrive(), bad.program, lambda _: None, PlaybackOptions())
    assert table.valid.tolist() == [i % 4 != 3 for i in range(12)]


# --- frame tables ---------------------------------------------------------------------------------


def test_frame_table_comes_back(tmp_path: Path, model: LoadedModel) -> None:
    outcome, _ = _run(tmp_path, model, _missing((4, "road")), digest_inputs=True)
    loaded = load_frames(frames_path(outcome.log))
    for name in ("moment", "frame_id", "dropped", "published", "valid", "execution_s"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(outcome.frames, name))
        assert getattr(loaded, name).dtype == getattr(outcome.frames, name).dtype
    assert loaded.input_crc.keys() == outcome.frames.input_crc.keys()
    for name, crc in loaded.input_crc.items():
        np.testing.assert_array_equal(crc, outcome.frames.input_crc[name])


def test_damaged_frame_tables_are_one_line(tmp_path: Path, model: LoadedModel) -> None:
    outcome, _ = _run(tmp_path, model, SyntheticDrive(count=2))
    path = frames_path(outcome.log)
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(DriveError, match="expected the frame table"):
            load_frames(path)
    with path.open("wb") as file:
        np.savez(file, moment=np.zeros(3, np.int64), frame_id=np.zeros(2, np.int64))
    with pytest.raises(DriveError, match="frame_id: expected 3 values of int64"):
        load_frames(path)
    path.unlink()
    with pytest.raises(DriveError, match="expected the frame table"):
        load_frames(path)
    table = outcome.frames
    save_frames(path, table)
    assert load_frames(path).moment.tolist() == [0, 1]


# --- prefetch -----------------------------------------------------------------------------------


def _reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "drive-prefetch"]


def test_prefetches_in_order_and_never_too_far() -> None:
    drive = SyntheticDrive(count=40)
    made = [-1]

    class Watched(SyntheticDrive):
        def _moments(self, first: int) -> Iterator[Moment]:
            for moment in super()._moments(first):
                made[0] = moment.index
                yield moment

    drive = Watched(count=40)
    with prefetch(drive) as moments:
        for expected, moment in enumerate(moments):
            assert moment.index == expected
            if expected == 5:
                time.sleep(0.05)
                # In the queue, and one that waits for a place in it.
                assert made[0] == 5 + DEPTH + 1
            # What the drive writes to next is not what is in use here.
            assert made[0] + 1 - moment.index < KEPT_MOMENTS
            assert (moment.frames["road"].data == brightness(expected, "road")).all()
    assert expected == 39
    assert _reading_threads() == []


def test_first_moment_can_be_chosen() -> None:
    with prefetch(SyntheticDrive(), first=9) as moments:
        assert [moment.index for moment in moments] == [9, 10, 11]


def test_error_comes_after_the_moments_before_it() -> None:
    drive = SyntheticDrive(damaged_at=3)
    seen: list[int] = []
    with pytest.raises(DriveError, match="found 3"), prefetch(drive) as moments:
        # extend() keeps what came before an exception.
        seen.extend(moment.index for moment in moments)
    assert seen == [0, 1, 2]
    assert _reading_threads() == []


def test_leaving_early_ends_the_thread_and_the_drive() -> None:
    drive = SyntheticDrive(count=1000)
    with contextlib.suppress(KeyboardInterrupt), prefetch(drive) as moments:
        next(moments)
        raise KeyboardInterrupt
    assert _reading_threads() == []
    assert drive.opened == [1, 1]


# --- the log's thread -----------------------------------------------------------------------------


def test_log_thread_writes_everything_in_order() -> None:
    written: list[bytes] = []
    with LogThread(written.append) as log:
        for index in range(300):
            log.record(b"%d" % index)
            if index % 3 == 0:
                log.flush()
    assert written == [b"%d" % index for index in range(300)]
    assert not [t for t in threading.enumerate() if t.name == "log-writer"]


def test_log_thread_raises_what_the_log_raised_and_never_waits_for_it() -> None:
    def full(data: bytes) -> None:
        raise OSError(28, f"No space left on device ({data.decode()})")

    def write(count: int) -> None:
        with LogThread(full) as log:
            for index in range(count):
                log.record(b"%d" % index)
                log.flush()

    # Noticed by a later event, or at the end where there is none; the queue never blocks.
    for count in (1, 1000):
        with pytest.raises(OSError, match=r"No space left on device \(0\)"):
            write(count)
    assert not [t for t in threading.enumerate() if t.name == "log-writer"]


# --- memory ---------------------------------------------------------------------------------------


_INTERRUPTED = """
import itertools, random, signal, sys, threading
from tools.drives.drive import Moment
from tools.playback.prefetch import prefetch
from tools.playback.log_thread import LogThread

class Drive:
    def moments(self, first=0):
        return (Moment(index, (), {}) for index in itertools.count(first))

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
rng = random.Random(1)
for _ in range(int(sys.argv[1])):
    try:
        with LogThread(lambda data: None) as log, prefetch(Drive()) as moments:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.5e-3, 2.5e-3))
            for moment in moments:
                log.record(b"event")
                log.flush()
    except KeyboardInterrupt:
        pass
assert threading.active_count() == 1
"""


@pytest.mark.alone
def test_interrupts_at_any_moment_leave_no_thread_waiting() -> None:
    subprocess.run([sys.executable, "-c", _INTERRUPTED, "1500"], check=True, timeout=90)


def test_memory_does_not_grow_with_the_drive(tmp_path: Path, tiny_model: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.tools.playback.synthetic_drive import SyntheticDrive\n"
        "from tools.playback.model import load_model\n"
        "from tools.playback.pictures import FramePictures\n"
        "from tools.playback.result import read_result\n"
        "from tools.playback.run_drive import PlaybackOptions, peak_rss_bytes, run_drive\n"
        "drive = SyntheticDrive(count=int(sys.argv[1]))\n"
        "with load_model(Path(sys.argv[2])) as model:\n"
        "    shown = FramePictures(drive.info)\n"
        "    options = PlaybackOptions(on_moment=shown.take)\n"
        "    outcome = run_drive(drive, model, Path(sys.argv[3]), options)\n"
        "    read_result(drive.info, model.path, outcome.log, shown.choose(4))\n"
        "print(peak_rss_bytes())\n"
    )
    peaks = []
    # The first run compiles the kernels, in memory that the others do not need.
    for count in (10, 100, 1000):
        done = subprocess.run(
            [sys.executable, "-c", code, str(count), str(tiny_model), str(tmp_path / "o.rlog.zst")],
            capture_output=True,
            check=True,
            cwd=Path(__file__).parents[3],
        )
        peaks.append(int(done.stdout))
    # 50 MiB in 10 800 more frames are 4.2 MiB in 900; a modelV2 alone is 20 kB, 17 MiB in 900.
    assert peaks[2] - peaks[1] < 50 * 2**20 * 900 / 10_800
