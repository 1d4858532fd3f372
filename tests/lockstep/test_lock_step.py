"""In lock step the process says what the same loop says inside one process, frame by frame."""

import signal
from contextlib import closing
from pathlib import Path

import pytest

from cereal.schema import read_event
from runtime import load_program
from tests.lockstep.events import GENERATIONS
from tests.lockstep.harness import (
    DMONITORINGMODELD,
    MODELD,
    STEP_NS,
    Harness,
    ProcessUnderTest,
    steps_of,
)
from tests.lockstep.unpadded import Unpadded
from tests.support.built import built, example_artifact
from tests.tools.driver_drive import driver_segment, driving_model
from tools.cli import main
from tools.compare.fields import cleared, spans_of
from tools.drives.drive import Drive
from tools.drives.open_drive import DriveOptions, open_drive
from tools.playback.run_drive import PlaybackOptions, play
from tools.playback.session import Programs

pytestmark = pytest.mark.opencl
# What is measured; the stamps of messages go with it.
MEASURED = ("modelExecutionTime", "gpuExecutionTime")
FRAMES = 40


def compared(data: bytes) -> tuple[str, bytes]:
    """The service of an event, and its bytes without what is measured."""
    service = str(read_event(data).which())
    return service, cleared(data, spans_of(service, MEASURED))


def in_process(drive: Drive, tested: ProcessUnderTest, model: Path) -> list[tuple[str, bytes]]:
    """What a replay of the drive inside this process says."""
    program = load_program(model)
    said: list[bytes] = []
    with closing(program):
        programs = Programs(program) if tested is MODELD else Programs(monitoring=program)
        play(drive, programs, said.append, PlaybackOptions())
    found = [compared(data) for data in said]
    return [row for row in found if row[0] in tested.outputs]


def stamps_by_frame(drive: Drive, tested: ProcessUnderTest) -> dict[int, int]:
    """When the harness collects what was said of a frame: as the next step is about to be sent."""
    main = next(iter(tested.cameras))
    triggers = [
        ({message.service: frame for message, frame in step.sent if frame}[main], step.mono_time_ns)
        for step in steps_of(drive, tested)
    ]
    times = [mono_time_ns for _, mono_time_ns in triggers]
    later = [*times[1:], times[-1] + STEP_NS]
    return {
        frame.frame_id: mono_time_ns + STEP_NS
        for (frame, _), mono_time_ns in zip(triggers, later, strict=True)
    }


def check(
    tmp_path: Path,
    generation: str,
    tested: ProcessUnderTest,
    model: Path,
    segment: Path,
    *,
    by_signal: signal.Signals = signal.SIGKILL,
    sees_padding: bool = False,
) -> None:
    watches = tested is DMONITORINGMODELD
    options = DriveOptions(driver_camera=watches, road_cameras=not watches)
    with closing(open_drive(str(segment), options)) as whole:
        drive = Unpadded(whole)
        expected = in_process(drive if sees_padding else whole, tested, model)
        due = stamps_by_frame(drive, tested)
        with Harness(tmp_path, generation, tested, model, drive) as harness:
            said = harness.run()
            assert harness.process.poll() is None, harness.said()
            # It waits for a permission that will never come.
            harness.process.send_signal(by_signal)
            code = harness.process.wait(timeout=30)
            assert code == (0 if by_signal == signal.SIGTERM else -by_signal), harness.said()
            assert "did not end" not in harness.said()
    found = [compared(data) for data in said]
    for service in tested.outputs:
        mine = [data for name, data in found if name == service]
        assert mine == [data for name, data in expected if name == service], service
        assert mine
    events = [read_event(data) for data in said]
    stamps = {getattr(event, event.which()).frameId: event.logMonoTime for event in events}
    assert stamps == {frame_id: due[frame_id] for frame_id in stamps}, "said in its own step"
    assert all(event.valid for event in events[-len(tested.outputs) :])


def test_a_few_frames(tmp_path: Path) -> None:
    model, drive = driving_model(), driver_segment()
    check(tmp_path, "fifos", MODELD, model, drive, by_signal=signal.SIGTERM, sees_padding=True)


@pytest.mark.slow
def test_events_that_cannot_be_used_end_the_process(tmp_path: Path) -> None:
    with closing(open_drive(str(driver_segment()), DriveOptions())) as whole:
        drive = Unpadded(whole)
        with pytest.raises(
            AssertionError, match=r"ended with 4:[\s\S]*expected 257 bytes .*found 9"
        ):
            Harness(tmp_path, "fifos", MODELD, driving_model(), drive, cut_at=9)


@pytest.fixture(scope="module")
def segment() -> Path:
    """Two seconds of a rendered drive; all cameras lose one frame."""

    def make(to: Path) -> None:
        words = ["make-drive", str(to), "--seconds", str(FRAMES / 20), "--seed", "5"]
        assert main([*words, "--driver-camera", "--drop", "17", "--device", "tizi"]) == 0

    return next(built("lock-step-drive", make).glob("*--0"))


@pytest.mark.slow
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("tested", [MODELD, DMONITORINGMODELD], ids=lambda tested: tested.name)
def test_a_segment(
    tmp_path: Path, segment: Path, generation: str, tested: ProcessUnderTest
) -> None:
    interface = "split-2025" if tested is MODELD else "dmonitoring-2025"
    check(tmp_path, generation, tested, example_artifact(interface), segment)


@pytest.mark.slow
@pytest.mark.parametrize("state", MODELD.cameras)
def test_a_frame_that_one_camera_lost_marks_its_moment_only(
    tmp_path: Path, segment: Path, state: str
) -> None:
    # From then on the harness sends the frames of a moment in two steps.
    with closing(open_drive(str(segment), DriveOptions())) as whole:
        drive, model = Unpadded(whole, lost=(state, 5)), example_artifact("split-2025")
        with Harness(tmp_path, "fifos", MODELD, model, drive) as harness:
            said = [read_event(data) for data in harness.run()]
    frames = {event.modelV2.frameId: event.valid for event in said if event.which() == "modelV2"}
    assert len(frames) > FRAMES - 8
    assert [frame_id for frame_id, valid in frames.items() if not valid and frame_id > 7] == []
