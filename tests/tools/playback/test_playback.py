"""Deterministic replay: the daemon over drives with gaps, one camera or two, twice the same."""

import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.errors import LogError
from cereal.frames import Frame, nv12_format
from cereal.log_reader import read_log, read_log_bytes
from cereal.log_writer import LogWriter
from cereal.schema import new_event, read_event
from modeld.vehicle.inputs import DEMO_CAR
from tests.tools.conftest import SIZE
from tests.tools.messages import event_of
from tests.tools.playback.synthetic_drive import START_NS, SyntheticDrive, brightness
from tests.tools.tiny_driving import write_tiny_driving
from tools.drives.drive import KEPT_MOMENTS, Message, Moment
from tools.errors import ArtifactMismatchError, DriveError
from tools.messages.drive_log import OUTPUT_SERVICES
from tools.playback.model import LoadedModel, load_model
from tools.playback.outcome import Outcome, frames_path, load_frames, save_frames
from tools.playback.run_drive import PlaybackOptions, play, run_drive
from tools.playback.session import PROCESSING_NS, PlaybackSession, PlaybackSource, car_of

pytestmark = pytest.mark.opencl

PAYLOAD = nv12_format(*SIZE).payload_bytes


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Iterator[LoadedModel]:
    with load_model(tiny_model) as loaded:
        yield loaded


class Run:
    """Replays drives into a log of the test's."""

    def __init__(self, model: LoadedModel, log: Path) -> None:
        self.model, self.log = model, log

    def __call__(self, drive: SyntheticDrive, **options: Any) -> tuple[Outcome, list[Any]]:
        """Return the outcome, and the Events of modelV2."""
        outcome = run_drive(drive, self.model, self.log, PlaybackOptions(**options))
        return outcome, [event for event in read_log(self.log) if event.which() == "modelV2"]

    def bytes(self, drive: SyntheticDrive, log: Path | None = None) -> bytes:
        return run_drive(drive, self.model, log or self.log).log.read_bytes()


@pytest.fixture
def run(model: LoadedModel, tmp_path: Path) -> Run:
    return Run(model, tmp_path / "o.rlog")


@pytest.fixture
def session(model: LoadedModel) -> Iterator[PlaybackSession]:
    """The daemon of a drive, to be given moments."""
    info = SyntheticDrive().info
    found = PlaybackSession(PlaybackOptions().config, model.programs, info, lambda _: None)
    yield found
    found.close()
    model.program.reset()


def crc_of(index: int, stream: str) -> int:
    return zlib.crc32(bytes([brightness(index, stream)]) * PAYLOAD)


def missing(*pairs: tuple[int, str]) -> SyntheticDrive:
    return SyntheticDrive(streams=("road", "wideRoad"), missing=frozenset(pairs))


def ids(models: list[Any]) -> list[int]:
    return [event.modelV2.frameId for event in models]


@pytest.mark.parametrize("streams", [("road",), ("road", "wideRoad"), ("wideRoad",)])
def test_each_frame_gives_three_messages_in_time_order(run: Run, streams: tuple[str, ...]) -> None:
    outcome, models = run(SyntheticDrive(streams=streams))
    events = list(read_log(run.log))
    for name in OUTPUT_SERVICES:
        said = [event for event in events if event.which() == name]
        assert [getattr(event, name).frameId for event in said] == list(range(12))
        assert all(event.valid for event in said)
    stamps = [event.logMonoTime for event in events]
    assert stamps == sorted(stamps)
    for event in models:
        assert event.logMonoTime == event.modelV2.timestampEof + PROCESSING_NS
        assert event.modelV2.modelExecutionTime == 0.0
    frames = outcome.frames
    assert frames.moment.tolist() == frames.frame_id.tolist() == list(range(12))
    assert frames.published.all()
    assert frames.valid.all()
    assert (frames.execution_s > 0).all()
    assert outcome.peak_rss_bytes > 0
    assert outcome.artifact_sha256 == run.model.artifact.sha256


def test_recorded_messages_are_kept_as_they_are_but_for_those_of_the_daemon(run: Run) -> None:
    drive = SyntheticDrive(recorded_model=True)
    _, models = run(drive)
    assert ids(models) == list(range(12))
    written = [d for d in read_log_bytes(run.log) if read_event(d).which() not in OUTPUT_SERVICES]
    recorded = [m.data for moment in drive.moments() for m in moment.messages]
    assert written == [d for d in recorded if read_event(d).which() != "modelV2"]


def test_messages_reach_the_daemon_before_their_frame(session: PlaybackSession) -> None:
    assert session.daemon is not None
    messages = session.daemon._messages
    for moment in SyntheticDrive(count=3).moments():
        session.step(moment)
        # The car's speed is 7 between the frames and 12 with each: the newest one counts.
        assert messages["carState"].vEgo == 12.0
        assert messages["roadCameraState"].frameId == moment.index
    # What was migrated is read, and what was recorded is passed on.
    passed: list[bytes] = []
    session._record = passed.append
    old, new = (event_of("carState", START_NS, vEgo=speed) for speed in (3.0, 4.0))
    session.step(Moment(0, (Message("carState", START_NS, old, new),), {}))
    session.daemon._messages.update(0)
    assert (session.daemon._messages["carState"].vEgo, passed[-1]) == (4.0, old)
    # Driver monitoring of either generation is one service.
    for member in ("driverMonitoringState", "driverMonitoringStateV2"):
        for is_rhd in (True, False):
            event = new_event(member, mono_time_ns=START_NS, valid=True)
            getattr(event, member).isRHD = is_rhd
            session.step(Moment(0, (Message(member, START_NS, event.to_bytes()),), {}))
            messages.update(0)
            assert messages["driverMonitoringState"].isRHD is is_rhd


@pytest.mark.parametrize("suffix", ["rlog", "rlog.zst"])
def test_two_runs_are_the_same_bytes(run: Run, tmp_path: Path, suffix: str) -> None:
    cameras = ("road", "wideRoad")
    drive = SyntheticDrive(30, streams=cameras, missing=frozenset({(4, "road"), (9, "wideRoad")}))
    whole = SyntheticDrive(30, streams=cameras)
    first, second, other = (
        run.bytes(one, tmp_path / f"{name}.{suffix}")
        for one, name in ((drive, "a"), (drive, "b"), (whole, "c"))
    )
    assert first == second != other


def test_digests_are_those_of_the_inputs_and_change_nothing_else(run: Run) -> None:
    drive = missing((5, "road"))
    plain, _ = run(drive)
    before = plain.log.read_bytes()
    outcome, _ = run(drive, digest_inputs=True)
    assert (outcome.log.read_bytes(), plain.frames.input_crc) == (before, {})
    crc, numbers = outcome.frames.input_crc, outcome.frames.frame_id.tolist()
    assert crc["road_frame"].tolist() == [crc_of(i, "road") for i in numbers]
    assert crc["wide_frame"].tolist() == [crc_of(i, "wideRoad") for i in numbers]
    # Frame 6 follows a dropped one: only queues advance, and that takes no traffic convention.
    convention = zlib.crc32(np.array([[1, 0]], np.float32).tobytes())
    expected = [0 if i == 6 else convention for i in numbers]
    assert crc["traffic_convention"].tolist() == expected
    assert len(set(crc["road_transform"].tolist())) == 1


def test_missing_moment_is_a_drop(run: Run) -> None:
    for drive in (
        missing((4, "road"), (4, "wideRoad")),
        missing((4, "road")),
        SyntheticDrive(missing=frozenset({(4, "road")})),
    ):
        outcome, models = run(drive)
        frames = outcome.frames
        assert frames.frame_id.tolist() == [0, 1, 2, 3, *range(5, 12)]
        assert frames.dropped.tolist() == [0] * 4 + [1] + [0] * 6
        assert frames.published.tolist() == [True] * 4 + [False] + [True] * 6
        assert ids(models) == [0, 1, 2, 3, *range(6, 12)]
    # A callback sees each moment.
    seen: list[tuple[int, bool]] = []
    run(missing((2, "road")), on_moment=lambda one, said: seen.append((one.index, bool(said))))
    assert seen == [(index, index != 2) for index in range(12)]


def test_missing_wide_frame_pairs_as_live(run: Run) -> None:
    outcome, models = run(missing((4, "wideRoad")), digest_inputs=True)
    # The daemon waits with frame 4 until a wide frame comes, which is that of moment 5; then frame
    # 5 has no partner, and 6 comes after a drop.
    assert outcome.frames.moment.tolist() == [0, 1, 2, 3, *range(5, 12)]
    assert outcome.frames.frame_id.tolist() == [0, 1, 2, 3, 4, *range(6, 12)]
    pairs = [(event.modelV2.frameId, event.modelV2.frameIdExtra) for event in models]
    assert pairs == [*((i, i) for i in range(4)), (4, 5), *((i, i) for i in range(7, 12))]
    assert outcome.frames.input_crc["road_frame"][4] == crc_of(4, "road")
    assert outcome.frames.input_crc["wide_frame"][4] == crc_of(5, "wideRoad")
    # A frame that waits is not overwritten.
    outcome, _ = run(missing((3, "wideRoad"), (4, "wideRoad")), digest_inputs=True)
    row = outcome.frames.frame_id.tolist().index(3)
    assert outcome.frames.moment[row] == 5
    assert outcome.frames.input_crc["road_frame"][row] == crc_of(3, "road")


def test_wide_camera_that_is_lost_for_a_while(run: Run) -> None:
    """Three moments are waited for, then the road camera goes on alone, invalid (ADR 0020)."""
    back = 3 + KEPT_MOMENTS + 4
    away = frozenset((index, "wideRoad") for index in range(3, back))
    outcome, models = run(SyntheticDrive(20, streams=("road", "wideRoad"), missing=away))
    assert outcome.frames.moment.tolist() == [0, 1, 2, *range(5, 20)]
    assert ids(models) == [0, 1, 2, *range(6, 20)]
    assert all(event.modelV2.frameIdExtra == event.modelV2.frameId for event in models)
    invalid = ids([event for event in models if not event.valid])
    assert [index for index in invalid if index > 2] == list(range(6, back))


def test_a_camera_that_never_comes(run: Run) -> None:
    outcome, models = run(missing(*((index, "road") for index in range(12))))
    assert (outcome.frames.moment.size, models) == (0, [])
    assert len(list(read_log(run.log))) > 12
    # Without the wide one there is the road camera.
    outcome, models = run(missing(*((index, "wideRoad") for index in range(12))))
    assert outcome.frames.moment.tolist() == list(range(2, 12))
    assert not any(event.valid for event in models)


def test_frames_come_as_from_a_ring_and_the_car_is_that_of_the_drive() -> None:
    layout = nv12_format(*SIZE)
    newest, all_of_them = (PlaybackSource(layout, conflate=c) for c in (True, False))
    for i in range(9):
        frame = Frame(np.full(layout.size, i, np.uint8), layout, i, i, i)
        newest.push(frame)
        all_of_them.push(frame)
    assert [f.frame_id for f in iter(lambda: newest.receive(0), None)] == [8]
    assert [f.frame_id for f in iter(lambda: all_of_them.receive(0), None)] == list(range(3, 9))
    assert car_of(SyntheticDrive().info) is DEMO_CAR
    car = car_of(SyntheticDrive(car_delay_s=0.25).info)
    assert car.longitudinal_actuator_delay_s == pytest.approx(0.25)


def test_damaged_drive_leaves_nothing_and_the_program_goes_on(run: Run, tmp_path: Path) -> None:
    good = run.bytes(SyntheticDrive())
    before = sorted(tmp_path.iterdir())
    drive = SyntheticDrive(damaged_at=7)
    with pytest.raises(DriveError, match="found 7"):
        run.bytes(drive, tmp_path / "bad.rlog")
    assert (sorted(tmp_path.iterdir()), drive.opened) == (before, [1, 1])
    # Nothing of the broken drive is left in the program's states.
    assert run.bytes(SyntheticDrive()) == good
    # A limit stops before the damage.
    outcome, _ = run(SyntheticDrive(damaged_at=7), limit=7)
    assert outcome.frames.moment.tolist() == list(range(7))


@pytest.mark.parametrize("size", [(64, 32), (128, 96), (96, 128)])
def test_frames_of_any_size_that_fits_are_taken(run: Run, size: tuple[int, int]) -> None:
    assert run(SyntheticDrive(size=size))[0].frames.published.all()


def test_nothing_is_left_of_frames_too_large_or_on_a_full_disk(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = SyntheticDrive(size=(320, 240))
    with pytest.raises(ArtifactMismatchError, match=r"found 320x240 with.*--camera 320x240"):
        run(drive)
    assert (drive.opened, list(tmp_path.iterdir())) == ([0, 0], [])

    def full(self: LogWriter) -> None:
        self.discard()
        raise LogError("o.rlog: expected to finish the log, got No space left on device")

    monkeypatch.setattr(LogWriter, "close", full)
    with pytest.raises(LogError, match="No space"):
        run(SyntheticDrive())
    assert list(tmp_path.iterdir()) == []


def test_non_finite_outputs_are_not_valid(tmp_path: Path) -> None:
    path = write_tiny_driving(tmp_path / "bad.pkl", SIZE, bad_frame=4)
    with load_model(path) as bad:
        table, _ = play(SyntheticDrive(), bad.programs, lambda _: None, PlaybackOptions())
    assert table.valid.tolist() == [i % 4 != 3 for i in range(12)]


def test_frame_table_comes_back_or_is_said_to_be_damaged(run: Run) -> None:
    outcome, _ = run(missing((4, "road")), digest_inputs=True)
    loaded = load_frames(frames_path(outcome.log))
    for name in ("moment", "frame_id", "dropped", "published", "valid", "execution_s"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(outcome.frames, name))
        assert getattr(loaded, name).dtype == getattr(outcome.frames, name).dtype
    assert loaded.input_crc.keys() == outcome.frames.input_crc.keys()
    for name, crc in loaded.input_crc.items():
        np.testing.assert_array_equal(crc, outcome.frames.input_crc[name])
    outcome, _ = run(SyntheticDrive(count=2))
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
    save_frames(path, outcome.frames)
    assert load_frames(path).moment.tolist() == [0, 1]


MEASURED = """
import sys
from pathlib import Path
from tests.tools.playback.synthetic_drive import SyntheticDrive
from tools.playback.model import load_model
from tools.playback.pictures import FramePictures
from tools.playback.result import read_result
from tools.playback.run_drive import PlaybackOptions, peak_rss_bytes, run_drive
drive = SyntheticDrive(count=int(sys.argv[1]))
with load_model(Path(sys.argv[2])) as model:
    shown = FramePictures(drive.info)
    options = PlaybackOptions(on_moment=shown.take)
    outcome = run_drive(drive, model, Path(sys.argv[3]), options)
    read_result(drive.info, model.paths, outcome.log, shown.choose(4))
print(peak_rss_bytes())
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_drive(tmp_path: Path, tiny_model: Path) -> None:
    def peak_bytes(count: int) -> int:
        words = [str(count), str(tiny_model), str(tmp_path / "o.rlog.zst")]
        command = [sys.executable, "-c", MEASURED, *words]
        return int(subprocess.check_output(command, cwd=Path(__file__).parents[3]))

    # The first run compiles the kernels, in memory that the others do not need.
    _, few, many = (peak_bytes(count) for count in (10, 100, 1000))
    # 50 MiB in 10 800 more frames are 4.2 MiB in 900; a modelV2 alone is 20 kB, 17 MiB in 900.
    assert many - few < 50 * 2**20 * 900 / 10_800
