"""Live replay: the real daemon process on a real bus, and what is made of what it said."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cereal.errors import LogError
from cereal.log_reader import read_log
from cereal.schema import new_event, read_event
from tests.tools.conftest import MakeVideo, Modeld
from tests.tools.playback.synthetic_drive import FIRST_ID, PERIOD_NS, START_NS, drive_to_play
from tests.tools.tiny_driving import write_tiny_driving
from tests.tools.waiting import wait_until
from tools.errors import ArtifactMismatchError, DriveError, UsageError
from tools.messages.drive_log import OUTPUT_SERVICES
from tools.playback.outcome import frames_path, load_frames
from tools.playback.player.live import LiveJob, answer_problems, live_report, replay_live
from tools.playback.player.live_answers import Answer, LiveLog, judge
from tools.playback.player.outlet import ServiceFilter
from tools.playback.player.player import Played, PlayOptions

MS = 1_000_000
FRAMES = 10


def played(number: int, clock_ms: float, *, gap: int = 0, continues: bool = True) -> Played:
    """Frame `number` of a drive of 50 ms a frame, sent at `clock_ms`."""
    eof_ns = START_NS + (number + gap) * PERIOD_NS
    return Played(number, FIRST_ID + number + gap, eof_ns, round(clock_ms * MS), 0, continues)


def answer(number: int, arrived_ms: float, *, valid: bool = True) -> Answer:
    return Answer(FIRST_ID + number, round(arrived_ms * MS), 0.025, 0.0, valid=valid)


def test_intervals_are_compared_with_the_recorded_ones_at_the_speed() -> None:
    frames = [played(0, 0, continues=False), *(played(i, 100 * i) for i in range(1, 5))]
    answers = [answer(0, 30), answer(1, 130), answer(2, 237), answer(3, 333), answer(4, 433)]
    found = judge(frames, answers, speed=0.5)
    # From frame 0, offered until it is answered, to frame 1 nothing is said.
    assert found.deviation_ms.tolist() == [7.0, 4.0, 0.0]
    assert found.latency_ms.tolist() == [30.0, 37.0, 33.0, 33.0]
    assert found.unanswered.size == found.repeated.size == 0
    assert found.table.published.all()
    assert found.table.execution_s.tolist() == [0.025] * 5


def test_frames_without_an_answer_and_with_two_are_named() -> None:
    frames = [played(i, 50 * i, continues=i > 0) for i in range(6)]
    answers = [answer(0, 30), answer(1, 80), answer(3, 180), answer(3, 181), answer(5, 280)]
    found = judge(frames, answers, speed=1.0)
    assert found.unanswered.tolist() == [FIRST_ID + 2, FIRST_ID + 4]
    assert found.repeated.tolist() == [FIRST_ID + 3]
    assert found.table.published.tolist() == [True, True, False, True, False, True]
    # None of the pairs of answered frames is whole but 0 and 1, and 0 does not count.
    assert found.deviation_ms.size == 0
    # A frame after frames lost in the recording may stay unanswered.
    frames = [played(0, 0), played(1, 50), played(2, 200, gap=2), played(3, 250, gap=2)]
    found = judge(frames, [answer(0, 30), answer(1, 80), answer(5, 280)], speed=1.0)
    assert (found.table.dropped.tolist(), found.unanswered.size) == ([0, 0, 2, 0], 0)
    assert found.table.published.tolist() == [True, True, False, True]
    found = judge([], [], speed=1.0)
    assert found.table.frame_id.size == found.unanswered.size == found.deviation_ms.size == 0


def _event(stamp_ns: int) -> bytes:
    data: bytes = new_event("carState", mono_time_ns=stamp_ns, valid=True).to_bytes()
    return data


def test_the_log_keeps_order_and_stamps_anew_also_what_is_damaged_inside(tmp_path: Path) -> None:
    # A builder's copy of it would end this process: its list points nowhere.
    event = new_event("roadCameraState", mono_time_ns=10)
    event.roadCameraState.transform, event.roadCameraState.image = [1.0] * 9, b"abcdefgh"
    damaged = bytearray(event.to_bytes())
    damaged[151] = 121
    path = tmp_path / "live.rlog.zst"
    with LiveLog(path) as log:
        log.write(_event(10))
        log.write(_event(999), 20)
        log.write(_event(30))
        log.write(bytes(damaged), 40)
    found = [(event.logMonoTime, event.valid) for event in read_log(path)]
    assert found == [(10, True), (20, True), (30, True), (40, False)]
    # After an error what was there before is left.
    path.write_bytes(b"older")
    with pytest.raises(LogError), LiveLog(path) as log:
        log.write(b"no event")
    assert (path.read_bytes(), len(list(tmp_path.iterdir()))) == (b"older", 1)


@pytest.mark.alone
@pytest.mark.opencl
def test_every_frame_is_answered_once_and_logged(tiny_model: Path, tmp_path: Path) -> None:
    """Frames are played live at half their pace: a busy machine can follow."""
    log = tmp_path / "live.rlog.zst"
    result = replay_live(drive_to_play(FRAMES), LiveJob(tiny_model, log, PlayOptions(speed=0.5)))
    assert answer_problems(result) == []
    assert result.outcome.wall_s > (FRAMES - 1) * 0.1
    assert result.outcome.peak_rss_bytes > 1 << 20
    report, events = live_report(result), list(read_log(log))
    assert (report["frames"], report["answered"]) == (FRAMES, FRAMES)
    names = Counter(str(event.which()) for event in events)
    assert [names[name] for name in (*OUTPUT_SERVICES, "roadCameraState")] == [FRAMES] * 4
    models = [event for event in events if event.which() == "modelV2"]
    ids = [event.modelV2.frameId for event in models]
    assert ids == [FIRST_ID + i for i in range(FRAMES)]
    table = load_frames(frames_path(log))
    assert table.frame_id.tolist() == ids
    assert table.published.all()
    # All that the daemon needs was there before its first frame.
    assert table.valid.all()
    # The log has the recording, and answers in its time.
    recorded = [m.data for moment in drive_to_play(FRAMES).moments() for m in moment.messages]
    found = [(e.which(), e.logMonoTime) for e in events if e.which() not in OUTPUT_SERVICES]
    assert found == [(e.which(), e.logMonoTime) for e in map(read_event, recorded)]
    for event in models:
        behind_ns = event.logMonoTime - event.modelV2.timestampEof
        # After its frame, in seconds of the drive, which passes at half the clock's pace.
        assert 0 < behind_ns < 10 * 1_000 * MS


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.opencl
def test_live_and_deterministic_replay_say_the_same(
    tmp_path: Path, tiny_model: Path, make_video: MakeVideo, modeld: Modeld
) -> None:
    words = ["replay", make_video(frames=12), "--model", tiny_model, "--json"]
    logs = [tmp_path / "live.rlog", tmp_path / "replay.rlog"]
    live = modeld(0, *words, "-o", logs[0], "--live", "--speed", "0.5").json
    deterministic = modeld(0, *words, "-o", logs[1]).json
    assert live["live"]["answered"] == 12
    assert live["live"]["interval_deviation_ms"]["max"] >= 0.0
    # Views are made of deterministic replays only.
    assert set(live) - {"live"} == set(deterministic) - {"overlay", "rerun"}
    same = ("drive", "identity", "frames", "published", "dropped", "messages", "valid", "finite")
    assert [live[name] for name in same] == [deterministic[name] for name in same]
    plans = [
        np.array([list(e.modelV2.position.y) for e in read_log(log) if e.which() == "modelV2"])
        for log in logs
    ]
    # The same frames in the same order from the same state: bit by bit the same numbers.
    np.testing.assert_array_equal(plans[0], plans[1])


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.opencl
def test_a_daemon_that_cannot_start_and_a_drive_that_breaks_off_leave_nothing(
    tmp_path: Path, tiny_model: Path
) -> None:
    job = LiveJob(tiny_model, tmp_path / "live.rlog", PlayOptions(speed=5.0))
    with pytest.raises(Exception, match="daemon: expected it to run, found it ended"):
        replay_live(drive_to_play(), replace(job, device="no-such-device"))
    with pytest.raises(DriveError, match="found 6"):
        replay_live(drive_to_play(damaged_at=6), job)
    assert list(tmp_path.iterdir()) == []
    assert _daemons_of(os.getpid()) == []


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.opencl
def test_a_daemon_that_stops_answering_is_a_finding(
    tmp_path: Path, tiny_model: Path, make_video: MakeVideo
) -> None:
    video, log = make_video(frames=30), tmp_path / "live.rlog"
    command = [sys.executable, "-m", "tools.cli", "replay", str(video), "--live"]
    command += ["--model", str(tiny_model), "-o", str(log)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            parts = "." + log.name + "*.part"
            wait_until(lambda: any(p.stat().st_size for p in tmp_path.glob(parts)), "it is played")
            (daemon,) = _daemons_of(process.pid)
            time.sleep(0.3)
            # Half a second is ten frames, of which the ring keeps the newest for the daemon.
            os.kill(daemon, signal.SIGSTOP)
            time.sleep(0.5)
            os.kill(daemon, signal.SIGCONT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "expected one modelV2 for each of 30 frames, found no modelV2 for" in errors
    # The log is kept: it shows what happened.
    assert log.exists()


def _daemons_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    commands = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    return [child for child, command in commands.items() if b"--camera-server" in command]


def test_what_cannot_be_played_live_is_refused_at_once(tmp_path: Path, tiny_model: Path) -> None:
    small = write_tiny_driving(tmp_path / "small.pkl", (64, 48))
    job = LiveJob(tiny_model, tmp_path / "x.rlog", PlayOptions())
    with pytest.raises(ArtifactMismatchError, match="192x128"):
        replay_live(drive_to_play(), replace(job, model=small))
    services = ServiceFilter(allow=frozenset({"modelV2", "carState"}))
    with pytest.raises(UsageError, match="no service that the daemon publishes, found modelV2"):
        replay_live(drive_to_play(), replace(job, options=PlayOptions(services=services)))
