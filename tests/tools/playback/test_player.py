"""The player: pace on a clock set by hand, and stamps after jumps."""

import itertools
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cereal.frames import Frame, MemoryFrameSource, nv12_format
from cereal.schema import read_event
from modeld.frames.frame_judge import DropFilter
from tests.modeld.conftest import make_sync
from tests.tools.messages import event_of
from tests.tools.playback.synthetic_drive import (
    FIRST_ID,
    PERIOD_NS,
    START_NS,
    SyntheticDrive,
    brightness,
    drive_to_play,
)
from tests.tools.playback.tape import CLOCK_NS, Tape, make, play
from tools.drives.drive import Message
from tools.errors import DriveError
from tools.messages.drive_messages import READOUT_NS
from tools.playback.player.command_line import play_report, spread
from tools.playback.player.player import NS_PER_S, Player
from tools.playback.player.stamps import Timeline

MS = 1_000_000


def states(tape: Tape) -> list[Any]:
    found = [read_event(data) for _, name, data in tape.sent if name == "roadCameraState"]
    return [event.roadCameraState for event in found]


def shown(tape: Tape) -> list[int]:
    """Return the moments whose pictures were sent of the road camera."""
    moment_of = {brightness(index, "road"): index for index in range(70)}
    pairs = zip(tape.frames, tape.values, strict=True)
    return [moment_of[value] for frame, value in pairs if frame[1] == "road"]


@pytest.mark.parametrize("speed", [0.1, 1.0, 2.5, 10.0])
def test_everything_is_sent_at_its_recorded_moment(speed: float) -> None:
    _, tape, played = play(drive_to_play(5), speed=speed)
    # The first message is stamped with the first frame's start; a frame comes 10 ms later.
    expected = [CLOCK_NS + round((READOUT_NS + i * PERIOD_NS) / speed) for i in range(5)]
    assert (tape.road_ns, [one.late_ns for one in played]) == (expected, [0] * 5)
    cars = [at for at, service, _ in tape.sent if service == "carState"]
    assert cars == [CLOCK_NS + round(i * PERIOD_NS / speed) for i in range(5)]


def test_first_pass_is_the_recording_byte_by_byte_with_wide_frames_before_road() -> None:
    drive = drive_to_play(4, car_delay_s=None)
    _, tape, _ = play(drive)
    recorded = [message for moment in drive.moments() for message in moment.messages]
    assert [(s, d) for _, s, d in tape.sent] == [(m.service, m.data) for m in recorded]
    assert [(n, sof) for _, n, sof in tape.road] == [
        (FIRST_ID + i, START_NS + i * PERIOD_NS) for i in range(4)
    ]
    expected = [brightness(i, stream) for i in range(4) for stream in ("wideRoad", "road")]
    assert tape.values == expected
    # Both before the state that announces them.
    once = ["driverMonitoringState", "carState", "frame wideRoad", "frame road", "roadCameraState"]
    assert tape.log == ["deviceState", "liveCalibration", "liveDelay", *once * 4]


def test_what_follows_the_last_frame_is_played_as_it_is_read_and_logged_as_recorded() -> None:
    drive = drive_to_play(2, car_delay_s=None)
    last_ns = START_NS + 2 * PERIOD_NS
    old, new = (event_of("deviceState", last_ns, deviceType=name) for name in ("unknown", "mici"))
    wild = event_of("sentinel", 2**63)
    drive.after = (Message("deviceState", last_ns, old, new), Message("sentinel", 2**63, wild))
    player, tape, _ = make(drive, loop=True, limit=3)
    logged: list[bytes] = []
    player.on_message = logged.append
    player.run(threading.Event())
    assert [data for _, _, data in tape.sent if data in (old, new, wild)] == [new, wild]
    assert [data for data in logged if data in (old, new, wild)] == [old, wild]
    # The second pass goes on from the frames, whatever a damaged clock said.
    assert tape.road[2][2] - tape.road[1][2] < 3 * PERIOD_NS


def test_start_limit_and_stamps_of_now() -> None:
    player, tape, _ = play(drive_to_play(), first=7, limit=3)
    assert tape.road_ids == [FIRST_ID + i for i in (7, 8, 9)]
    assert player.counts.frames == {"wideRoad": 3, "road": 3}
    _, tape, _ = play(drive_to_play(4), now=True)
    expected = [(FIRST_ID + i, CLOCK_NS + i * PERIOD_NS) for i in range(4)]
    assert [(n, sof) for _, n, sof in tape.road] == expected
    assert [(state.frameId, state.timestampSof) for state in states(tape)] == expected


def test_a_silence_of_over_a_second_is_skipped() -> None:
    player, tape, played = play(drive_to_play(4, gap=(2, 7 * NS_PER_S)))
    # Frame 1's state at 60 ms; the silence lasts one period; frame 2 is 10 ms after its messages.
    assert [at - CLOCK_NS for at in tape.road_ns] == [10 * MS, 60 * MS, 120 * MS, 170 * MS]
    assert player.counts.gaps == 1
    assert [one.continues for one in played] == [False, True, False, True]
    # Stamps are the recording's.
    assert tape.road[2][2] == START_NS + 2 * PERIOD_NS + 7 * NS_PER_S
    # A silence of a second is kept.
    player, tape, _ = play(drive_to_play(3, gap=(2, NS_PER_S - PERIOD_NS)))
    assert (player.counts.gaps, tape.road_ns[2] - tape.road_ns[1]) == (0, NS_PER_S)


@given(st.lists(st.integers(0, 400), min_size=8, max_size=8))
@settings(max_examples=60, deadline=None)
def test_late_frames_are_sent_at_once_and_never_in_a_burst(stalls_ms: list[int]) -> None:
    player, tape, played = make(drive_to_play(9))

    def stall(frames: int) -> None:
        if frames % 2 == 0 and frames // 2 <= len(stalls_ms):
            tape.clock.advance_ns(stalls_ms[frames // 2 - 1] * MS)

    tape.after_frame = stall
    player.run(threading.Event())
    times = tape.road_ns
    assert len(times) == 9
    for stall_ms, (before, after) in zip(stalls_ms, itertools.pairwise(times), strict=True):
        # A stall is after the frame; what follows is as soon as allowed and at most a period late.
        assert 0.8 * PERIOD_NS <= after - before <= max(stall_ms * MS, PERIOD_NS)
    assert all(one.late_ns >= 0 for one in played)
    slipped_ns = times[-1] - times[0] - 8 * PERIOD_NS
    assert player.counts.slipped_ns <= slipped_ns + max(stalls_ms) * MS + 1


def test_lateness_is_what_the_clock_says() -> None:
    player, tape, played = make(drive_to_play(4))
    # After both frames of moment 1, which were on time: 130 ms, of which 50 were free.
    tape.after_frame = lambda frames: tape.clock.advance_ns(130 * MS) if frames == 4 else None
    player.run(threading.Event())
    assert [one.late_ns // MS for one in played] == [0, 0, 80, 0]
    report = play_report(player.counts, played)
    assert (report["late_frames"], report["late_ms"]["max"]) == (1, 80.0)
    # Moment 3 was due 20 ms after moment 2 was sent, and 40 is the least.
    assert (report["slipped_ms"], tape.road_ns[3] - tape.road_ns[2]) == (70.0, 40 * MS)


def test_spread_and_timeline_by_hand() -> None:
    assert spread(np.arange(101.0)) == {"p50": 50.0, "p99": 99.0, "max": 100.0}
    assert spread(np.zeros(0)) is None
    line = Timeline(2.5)
    line.set(1_000, 50_000)
    assert (line.due_ns(3_500), line.played_ns(51_000)) == (51_000, 3_500)
    line.delay(10)
    assert line.due_ns(1_000) == 50_010


def test_pause_stops_everything_and_moves_all_that_follows() -> None:
    player, tape, played = make(drive_to_play(6))
    paused_at: list[int] = []

    def attend(one: Player) -> None:
        if one.is_paused:
            if tape.clock.now_ns() - paused_at[0] > 3 * NS_PER_S:
                one.resume()
        elif len(played) == 2 and not paused_at:
            paused_at.append(tape.clock.now_ns())
            one.pause()

    player.run(threading.Event(), attend)
    times, (paused_ns,) = tape.road_ns, paused_at
    assert len(times) == 6
    assert not any(paused_ns < at < paused_ns + 3 * NS_PER_S for at in times)
    after = [at for at, name, _ in tape.sent if name != "carParams" and at > paused_ns]
    assert min(after) >= paused_ns + 3 * NS_PER_S
    assert (times[3] - times[2], [one.late_ns for one in played]) == (PERIOD_NS, [0] * 6)


def seek_after(frames: int, delta_s: float, drive: SyntheticDrive) -> tuple[Player, Tape]:
    player, tape, played = make(drive)
    done: list[int] = []

    def attend(one: Player) -> None:
        if len(played) >= frames and not done:
            done.append(one.position)
            one.seek(delta_s)

    player.run(threading.Event(), attend)
    return player, tape


@pytest.mark.parametrize(
    ("frames", "delta_s", "place"),
    [(30, -1.0, 10), (5, 1.0, 25), (5, -10.0, 0), (5, 99.0, 39), (25, 0.7, 39)],
)
def test_ids_stamps_and_messages_go_on_after_a_seek(
    frames: int, delta_s: float, place: int
) -> None:
    drive = drive_to_play(40)
    player, tape = seek_after(frames, delta_s, drive)
    assert tape.road_ids == list(range(FIRST_ID, FIRST_ID + len(tape.road)))
    stamps = [sof for _, _, sof in tape.road]
    assert {b - a for a, b in itertools.pairwise(stamps)} == {PERIOD_NS}
    assert player.counts.jumps == 1
    # The picture is that of the place gone to, within the moment that was being played.
    jumped_to = shown(tape)[-1] if delta_s == 99.0 else drive.began[1]
    assert abs(jumped_to - place) <= 2
    assert shown(tape)[-1] == 39
    # What is said of the frames agrees with them.
    found = [(state.frameId, state.timestampSof, state.timestampEof) for state in states(tape)]
    assert found == [frame[2:] for frame in tape.frames if frame[1] == "road"]
    stamps = [read_event(data).logMonoTime for _, name, data in tape.sent if name != "carParams"]
    assert stamps == sorted(stamps)


def test_a_loop_begins_again_where_it_began_and_no_daemon_sees_a_drop() -> None:
    player, tape, _ = play(drive_to_play(6), loop=True, first=2, limit=10)
    assert (shown(tape), player.counts.jumps) == ([2, 3, 4, 5, 2, 3, 4, 5, 2, 3], 2)
    drops = DropFilter()
    assert [drops.update(number).dropped for number in tape.road_ids] == [0] * 10
    assert all(b - a >= 0.8 * PERIOD_NS for a, b in itertools.pairwise(tape.road_ns))
    # A drive without frames does not loop for ever.
    drive = drive_to_play(3, streams=())
    player, _, played = play(drive, loop=True)
    assert (played, player.counts.frames, drive.began) == ([], {}, [0])


@pytest.mark.parametrize("delta_s", [-1.0, -0.1, 0.5, 1.5])
def test_the_daemon_pairs_every_frame_around_a_seek(delta_s: float) -> None:
    _, tape = seek_after(20, delta_s, drive_to_play(60))
    layout = nv12_format(64, 32)
    streams = {name: MemoryFrameSource(layout) for name in ("road", "wideRoad")}
    for _, stream, *times in tape.frames:
        streams[stream].push(Frame(np.zeros(layout.size, np.uint8), layout, *times))
    sync = make_sync(streams["road"], streams["wideRoad"])
    pairs = [sync.receive() for _ in tape.road]
    assert all(pair is not None and pair.main.frame_id == pair.extra.frame_id for pair in pairs)


def test_what_a_drive_raises_reaches_the_caller_after_what_precedes() -> None:
    player, tape, _ = make(drive_to_play(9, damaged_at=3))
    with pytest.raises(DriveError, match="found 3"):
        player.run(threading.Event())
    assert len(tape.road) == 3
    # A stop ends it at once.
    player, tape, _ = make(drive_to_play(900))
    stop = threading.Event()
    tape.after_frame = lambda frames: stop.set() if frames == 10 else None
    player.run(stop)
    assert len(tape.frames) == 10


def test_car_params_are_sent_at_the_start_and_every_second() -> None:
    player, tape, _ = play(drive_to_play(61))
    at = [when - CLOCK_NS for when, name, _ in tape.sent if name == "carParams"]
    assert (at[0], len(at)) == (0, 4)
    assert all(0 <= b - a - NS_PER_S <= PERIOD_NS for a, b in itertools.pairwise(at))
    assert "carParams" not in player.counts.messages  # it is none of the recording's messages


def test_the_first_frame_is_offered_until_it_is_answered() -> None:
    player, tape, played = make(drive_to_play(3))
    player.is_answered = lambda: len(tape.road) >= 4
    player.run(threading.Event())
    assert tape.road_ids == [FIRST_ID] * 4 + [FIRST_ID + 1, FIRST_ID + 2]
    assert [one.frame_id for one in played] == [FIRST_ID, FIRST_ID + 1, FIRST_ID + 2]
    assert player.counts.frames == {"wideRoad": 3, "road": 3}
    # Each time with the newest message of each service, for who has just connected.
    assert Counter(name for _, name, _ in tape.sent)["liveCalibration"] == 1 + 4
    assert player.counts.messages["liveCalibration"] == 1


def test_an_answer_to_an_offer_that_comes_at_once_is_not_before_its_frame() -> None:
    player, tape, _ = make(drive_to_play(3))
    answered: list[int] = []
    mapped: list[int] = []

    def answer(_: int) -> None:
        # Whom the frame wakes takes the processor, and answers before the player goes on.
        answered.append(tape.clock.now_ns())
        tape.clock.sleep_until_ns(answered[-1] + MS)

    def is_answered() -> bool:
        if answered:
            mapped.append(player.timeline.played_ns(answered[-1]) - tape.frames[-1][4])
        return len(mapped) > 2

    tape.after_frame, player.is_answered = answer, is_answered
    player.run(threading.Event())
    assert min(mapped) >= 0
