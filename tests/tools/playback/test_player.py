"""The player: pace on a clock set by hand, stamps after jumps, and real rings on a real bus."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cereal.clock import ManualClock, MonotonicClock
from cereal.errors import FrameError
from cereal.frames import Frame, FrameRingReader, available_streams, nv12_format
from cereal.schema import content, new_event, read_event
from cereal.transport import MemoryTransport, ZmqTransport
from modeld.drop_filter import DropFilter
from tests.modeld.conftest import make_sync
from tests.tools.playback.memory_drive import FIRST_ID, PERIOD_NS, READOUT_NS, START_NS, MemoryDrive
from tools.drives.drive import Message, Moment
from tools.errors import DriveError, ToolError, UsageError
from tools.playback.player import NS_PER_S, Played, Player, PlayOptions
from tools.playback.player_events import events_of
from tools.playback.player_outlet import BusOutlet, ServiceFilter
from tools.playback.player_report import play_report, spread
from tools.playback.player_stamps import Offset, moved
from tools.playback.player_timeline import Timeline
from tools.playback.prefetch import prefetch

MS = 1_000_000
CLOCK_NS = 123 * NS_PER_S


class Tape:
    """An outlet that writes down what is sent, and when."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.sent: list[tuple[int, str, bytes]] = []
        self.frames: list[tuple[int, str, int, int, int]] = []
        self.log: list[str] = []
        self.values: list[int] = []
        self.after_frame: Callable[[int], None] = lambda _: None
        self._filled: dict[str, Frame] = {}

    def send(self, service: str, data: bytes) -> None:
        self.sent.append((self.clock.now_ns(), service, data))
        self.log.append(service)

    def fill(self, stream: str, frame: Frame) -> None:
        self._filled[stream] = frame

    def publish(self, stream: str, frame_id: int, sof_ns: int, eof_ns: int) -> None:
        self.frames.append((self.clock.now_ns(), stream, frame_id, sof_ns, eof_ns))
        self.log.append(f"frame {stream}")
        self.values.append(int(self._filled.pop(stream).data[0]))
        self.after_frame(len(self.frames))

    def road(self) -> list[tuple[int, int, int]]:
        """(clock, id, sof) of the road camera's frames."""
        return [(at, number, sof) for at, stream, number, sof, _ in self.frames if stream == "road"]


def make(drive: MemoryDrive, **options: Any) -> tuple[Player, Tape, list[Played]]:
    clock = ManualClock(CLOCK_NS)
    tape = Tape(clock)

    @contextlib.contextmanager
    def read(first: int) -> Iterator[Iterator[Moment]]:
        yield drive.moments(first)

    player = Player(drive.info, read, tape, clock, PlayOptions(**options))
    played: list[Played] = []
    player.on_frame = played.append
    return player, tape, played


def play(drive: MemoryDrive, **options: Any) -> tuple[Player, Tape, list[Played]]:
    player, tape, played = make(drive, **options)
    player.run(threading.Event())
    return player, tape, played


# --- pace -------------------------------------------------------------------------------------


@pytest.mark.parametrize("speed", [0.1, 1.0, 2.5, 10.0])
def test_everything_is_sent_at_its_recorded_moment(speed: float) -> None:
    _, tape, played = play(MemoryDrive(count=5), speed=speed)
    # The first message is stamped with the first frame's start; a frame comes 10 ms later.
    expected = [CLOCK_NS + round((READOUT_NS + i * PERIOD_NS) / speed) for i in range(5)]
    assert [at for at, _, _ in tape.road()] == expected
    assert [one.late_ns for one in played] == [0] * 5
    states = [at for at, service, _ in tape.sent if service == "carState"]
    assert states == [CLOCK_NS + round(i * PERIOD_NS / speed) for i in range(5)]


def test_wide_comes_before_road_and_both_before_the_state_that_announces_them() -> None:
    _, tape, _ = play(MemoryDrive(count=2, with_car=False))
    once = ["driverMonitoringState", "carState", "frame wideRoad", "frame road", "roadCameraState"]
    assert tape.log == ["deviceState", "liveCalibration", "liveDelay", *once, *once]


def test_first_pass_is_the_recording_byte_by_byte() -> None:
    drive = MemoryDrive(count=4, with_car=False)
    _, tape, _ = play(drive)
    recorded = [message for moment in drive.moments() for message in moment.messages]
    assert [(s, d) for _, s, d in tape.sent] == [(m.service, m.data) for m in recorded]
    assert [(n, sof) for _, n, sof in tape.road()] == [
        (FIRST_ID + i, START_NS + i * PERIOD_NS) for i in range(4)
    ]
    assert tape.values == [0, 0, 1, 1, 2, 2, 3, 3]


def test_stamps_of_now_begin_at_the_clock_and_agree() -> None:
    _, tape, _ = play(MemoryDrive(count=4), now=True)
    assert [(n, sof) for _, n, sof in tape.road()] == [
        (FIRST_ID + i, CLOCK_NS + i * PERIOD_NS) for i in range(4)
    ]
    states = [read_event(data) for _, name, data in tape.sent if name == "roadCameraState"]
    assert [e.roadCameraState.timestampSof for e in states] == [sof for _, _, sof in tape.road()]
    assert [e.roadCameraState.frameId for e in states] == [FIRST_ID + i for i in range(4)]


def test_start_and_limit() -> None:
    player, tape, _ = play(MemoryDrive(count=20), first=7, limit=3)
    assert [number for _, number, _ in tape.road()] == [FIRST_ID + i for i in (7, 8, 9)]
    assert player.counts.frames == {"wideRoad": 3, "road": 3}


def test_a_silence_of_over_a_second_is_skipped() -> None:
    drive = MemoryDrive(count=4, gap_before=2, gap_ns=7 * NS_PER_S)
    player, tape, played = play(drive)
    at = [when - CLOCK_NS for when, _, _ in tape.road()]
    # Frame 1's state at 60 ms; the silence lasts one period; frame 2 is 10 ms after its messages.
    assert at == [10 * MS, 60 * MS, 120 * MS, 170 * MS]
    assert player.counts.gaps == 1
    assert [one.continues for one in played] == [False, True, False, True]
    # Stamps are the recording's.
    assert tape.road()[2][2] == START_NS + 2 * PERIOD_NS + 7 * NS_PER_S


def test_a_silence_of_a_second_is_kept() -> None:
    drive = MemoryDrive(count=3, gap_before=2, gap_ns=NS_PER_S - PERIOD_NS)
    player, tape, _ = play(drive)
    assert player.counts.gaps == 0
    assert tape.road()[2][0] - tape.road()[1][0] == NS_PER_S


@given(st.lists(st.integers(0, 400), min_size=8, max_size=8))
@settings(max_examples=60, deadline=None)
def test_late_frames_are_sent_at_once_and_never_in_a_burst(stalls_ms: list[int]) -> None:
    drive = MemoryDrive(count=9)
    player, tape, played = make(drive)

    def stall(frames: int) -> None:
        if frames % 2 == 0 and frames // 2 <= len(stalls_ms):
            tape.clock.advance_ns(stalls_ms[frames // 2 - 1] * MS)

    tape.after_frame = stall
    player.run(threading.Event())
    times = [at for at, _, _ in tape.road()]
    assert len(times) == 9
    for index, stall_ms in enumerate(stalls_ms):
        interval_ns = times[index + 1] - times[index]
        # A stall is after the frame; what follows is as soon as allowed and at most a period late.
        assert interval_ns >= 0.8 * PERIOD_NS
        assert interval_ns <= max(stall_ms * MS, PERIOD_NS)
    assert all(one.late_ns >= 0 for one in played)
    slipped_ns = times[-1] - times[0] - 8 * PERIOD_NS
    assert player.counts.slipped_ns <= slipped_ns + max(stalls_ms) * MS + 1


def test_lateness_is_what_the_clock_says() -> None:
    player, tape, played = make(MemoryDrive(count=4))
    # After both frames of moment 1, which were on time: 130 ms, of which 50 were free.
    tape.after_frame = lambda frames: tape.clock.advance_ns(130 * MS) if frames == 4 else None
    player.run(threading.Event())
    assert [one.late_ns // MS for one in played] == [0, 0, 80, 0]
    report = play_report(player.counts, played)
    assert report["late_frames"] == 1
    assert report["late_ms"]["max"] == 80.0
    # Moment 3 was due 20 ms after moment 2 was sent, and 40 is the least.
    assert report["slipped_ms"] == 70.0
    times = [at for at, _, _ in tape.road()]
    assert times[3] - times[2] == 40 * MS


def test_spread_of_known_numbers() -> None:
    assert spread(np.arange(101.0)) == {"p50": 50.0, "p99": 99.0, "max": 100.0}
    assert spread(np.zeros(0)) is None


def test_timeline_maps_back() -> None:
    line = Timeline(2.5)
    line.set(1_000, 50_000)
    assert (line.due_ns(3_500), line.played_ns(51_000)) == (51_000, 3_500)
    line.delay(10)
    assert line.due_ns(1_000) == 50_010


# --- control ----------------------------------------------------------------------------------


def test_pause_stops_everything_and_moves_all_that_follows() -> None:
    player, tape, played = make(MemoryDrive(count=6))
    paused_at: list[int] = []

    def attend(one: Player) -> None:
        if one.is_paused:
            if tape.clock.now_ns() - paused_at[0] > 3 * NS_PER_S:
                one.resume()
        elif len(played) == 2 and not paused_at:
            paused_at.append(tape.clock.now_ns())
            one.pause()

    player.run(threading.Event(), attend)
    times = [at for at, _, _ in tape.road()]
    assert len(times) == 6
    assert not any(paused_at[0] < at < paused_at[0] + 3 * NS_PER_S for at in times)
    quiet = [at for at, name, _ in tape.sent if name != "carParams" and at > paused_at[0]]
    assert min(quiet) >= paused_at[0] + 3 * NS_PER_S
    assert times[3] - times[2] == PERIOD_NS
    assert [one.late_ns for one in played] == [0] * 6


def seek_after(frames: int, delta_s: float, drive: MemoryDrive) -> tuple[Player, Tape]:
    player, tape, played = make(drive)
    done: list[int] = []

    def attend(one: Player) -> None:
        if len(played) >= frames and not done:
            done.append(one.position)
            one.seek(delta_s)

    player.run(threading.Event(), attend)
    return player, tape


@pytest.mark.parametrize(
    ("frames", "delta_s", "values"),
    [(30, -1.0, 10), (5, 1.0, 25), (5, -10.0, 0), (5, 99.0, 39)],
)
def test_ids_and_stamps_go_on_after_a_seek(frames: int, delta_s: float, values: int) -> None:
    drive = MemoryDrive(count=40)
    player, tape = seek_after(frames, delta_s, drive)
    ids = [number for _, number, _ in tape.road()]
    assert ids == list(range(FIRST_ID, FIRST_ID + len(ids)))
    assert {b - a for (_, _, a), (_, _, b) in zip(tape.road(), tape.road()[1:], strict=False)} == {
        PERIOD_NS
    }
    assert player.counts.jumps == 1
    # The picture is that of the place gone to, within the moment that was being played.
    jumped_to = tape.values[2 * len(ids) - 1] if delta_s == 99.0 else drive.began[1]
    assert abs(jumped_to - values) <= 2
    assert tape.values[-1] == 39


@pytest.mark.parametrize("delta_s", [-1.0, 0.7])
def test_messages_after_a_seek_agree_with_frames(delta_s: float) -> None:
    _, tape = seek_after(25, delta_s, MemoryDrive(count=45))
    states = [read_event(data) for _, name, data in tape.sent if name == "roadCameraState"]
    found = [(e.roadCameraState.frameId, e.roadCameraState.timestampSof) for e in states]
    assert found == [(number, sof) for _, number, sof in tape.road()]
    eofs = [e.roadCameraState.timestampEof for e in states]
    assert eofs == [eof for _, stream, _, _, eof in tape.frames if stream == "road"]
    stamps = [read_event(data).logMonoTime for _, name, data in tape.sent if name != "carParams"]
    assert stamps == sorted(stamps)


def test_a_loop_begins_again_where_it_began_and_no_daemon_sees_a_drop() -> None:
    drive = MemoryDrive(count=6)
    player, tape, _ = play(drive, loop=True, first=2, limit=10)
    assert tape.values[::2] == [2, 3, 4, 5, 2, 3, 4, 5, 2, 3]
    assert player.counts.jumps == 2
    drops = DropFilter()
    assert [drops.update(number).dropped for _, number, _ in tape.road()] == [0] * 10
    at = [when for when, _, _ in tape.road()]
    assert all(b - a >= 0.8 * PERIOD_NS for a, b in itertools.pairwise(at))


class Queue:
    """A camera source for FrameSync: what the tape holds, in order."""

    def __init__(self, frames: list[Frame]) -> None:
        self.frames = frames
        self.format = nv12_format(64, 32)

    def receive(self, timeout_ms: int) -> Frame | None:
        del timeout_ms
        return self.frames.pop(0) if self.frames else None

    def is_intact(self) -> bool:
        return True

    def close(self) -> None: ...


@pytest.mark.parametrize("delta_s", [-1.0, -0.1, 0.5, 1.5])
def test_the_daemon_pairs_every_frame_around_a_seek(delta_s: float) -> None:
    _, tape = seek_after(20, delta_s, MemoryDrive(count=60))
    layout = nv12_format(64, 32)
    streams: dict[str, list[Frame]] = {"road": [], "wideRoad": []}
    for _, stream, number, sof, eof in tape.frames:
        streams[stream].append(Frame(np.zeros(layout.size, np.uint8), layout, number, sof, eof))
    count = len(streams["road"])
    sync = make_sync(Queue(streams["road"]), Queue(streams["wideRoad"]))
    pairs = [sync.receive() for _ in range(count)]
    assert all(pair is not None and pair.main.frame_id == pair.extra.frame_id for pair in pairs)


def test_a_drive_without_frames_does_not_loop_for_ever() -> None:
    drive = MemoryDrive(count=3, streams=())
    player, _, played = play(drive, loop=True)
    assert (played, player.counts.frames, drive.began) == ([], {}, [0])


def test_what_a_drive_raises_reaches_the_caller_after_what_precedes() -> None:
    player, tape, _ = make(MemoryDrive(count=9, fails_at=3))
    with pytest.raises(DriveError, match="moment 3"):
        player.run(threading.Event())
    assert len(tape.road()) == 3


def test_a_stop_ends_it_at_once() -> None:
    player, tape, _ = make(MemoryDrive(count=900))
    stop = threading.Event()
    tape.after_frame = lambda frames: stop.set() if frames == 10 else None
    player.run(stop)
    assert len(tape.frames) == 10


def test_car_params_are_sent_at_the_start_and_every_second() -> None:
    drive = MemoryDrive(count=61)
    player, tape, _ = play(drive)
    at = [when - CLOCK_NS for when, name, _ in tape.sent if name == "carParams"]
    assert at[0] == 0
    assert len(at) == 4
    assert all(0 <= b - a - NS_PER_S <= PERIOD_NS for a, b in itertools.pairwise(at))
    assert "carParams" not in player.counts.messages  # it is none of the recording's messages


def test_the_first_frame_is_offered_until_it_is_answered() -> None:
    player, tape, played = make(MemoryDrive(count=3))
    player.is_answered = lambda: len(tape.road()) >= 4
    player.run(threading.Event())
    ids = [number for _, number, _ in tape.road()]
    assert ids == [FIRST_ID] * 4 + [FIRST_ID + 1, FIRST_ID + 2]
    assert [one.frame_id for one in played] == [FIRST_ID, FIRST_ID + 1, FIRST_ID + 2]
    assert player.counts.frames == {"wideRoad": 3, "road": 3}
    # Each time with the newest message of each service, for who has just connected.
    assert Counter(name for _, name, _ in tape.sent)["liveCalibration"] == 1 + 4
    assert player.counts.messages["liveCalibration"] == 1


def test_an_answer_to_an_offer_that_comes_at_once_is_not_before_its_frame() -> None:
    player, tape, _ = make(MemoryDrive(count=3))
    answered: list[int] = []

    def answer(_: int) -> None:
        # Whom the frame wakes takes the processor, and answers before the player goes on.
        answered.append(tape.clock.now_ns())
        tape.clock.sleep_until_ns(answered[-1] + MS)

    tape.after_frame = answer
    mapped: list[int] = []

    def is_answered() -> bool:
        if answered:
            mapped.append(player.timeline.played_ns(answered[-1]) - tape.frames[-1][4])
        return len(mapped) > 2

    player.is_answered = is_answered
    player.run(threading.Event())
    assert min(mapped) >= 0


# --- services ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allow", "block", "passing"),
    [
        ((), (), {"carState", "can", "initData", "carParams"}),
        ((), ("can", "initData"), {"carState", "initData", "carParams"}),
        (("can",), (), {"can", "initData", "carParams"}),
        (("modelV2", "can"), ("can",), {"modelV2", "initData", "carParams"}),
    ],
)
def test_filters(allow: tuple[str, ...], block: tuple[str, ...], passing: set[str]) -> None:
    one = ServiceFilter(frozenset(allow), frozenset(block))
    names = ("carState", "can", "initData", "carParams", "modelV2", "driverStateV2", "modeldHealth")
    assert {name for name in names if one.passes(name)} == passing


def test_an_unknown_service_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--block: expected names of services, found carStat"):
        ServiceFilter(block=frozenset({"carStat"}))


def test_a_blocked_service_is_not_sent() -> None:
    blocked = ServiceFilter(block=frozenset({"carState"}))
    _, tape, _ = play(MemoryDrive(count=2), services=blocked)
    assert "carState" not in tape.log
    assert "roadCameraState" in tape.log


def test_messages_go_to_the_service_of_their_member(tmp_path: Path) -> None:
    bus = MemoryTransport()
    outlet = BusOutlet(bus, "test-topic", {}, directory=tmp_path)
    states = bus.subscriber("driverMonitoringState")
    reserved = bus.subscriber("customReserved0")
    outlet.send("driverMonitoringStateV2", b"state of 2026")
    outlet.send("driverMonitoringState", b"state of 2025")
    outlet.send("customReserved0", b"of a fork")
    assert (states.receive(), states.receive()) == (b"state of 2026", b"state of 2025")
    assert reserved.receive() == b"of a fork"
    outlet.close()
    blocked = ServiceFilter(block=frozenset({"driverMonitoringState"}))
    assert not blocked.passes("driverMonitoringStateV2")
    assert ServiceFilter(allow=blocked.block).passes("driverMonitoringStateV2")


# --- events and stamps ------------------------------------------------------------------------


def _message(service: str, time_ns: int) -> Message:
    return Message(service, time_ns, new_event(service, mono_time_ns=time_ns).to_bytes())


def _frame(eof_ns: int) -> Frame:
    layout = nv12_format(64, 32)
    return Frame(np.zeros(layout.size, np.uint8), layout, 5, eof_ns - 10, eof_ns)


def test_frames_come_with_the_states_that_announce_them_extra_cameras_never_after_road() -> None:
    messages = (
        _message("carState", 100),
        _message("roadCameraState", 200),
        _message("carState", 210),
        _message("wideRoadCameraState", 230),
    )
    moment = Moment(0, messages, {"wideRoad": _frame(150), "road": _frame(155)})
    names = []
    for event in events_of(moment):
        names += [event.message.service] if event.message else []
        names += [event.frame[0]] if event.frame else []
    assert names == [
        "carState",
        "wideRoad",
        "road",
        "roadCameraState",
        "carState",
        "wideRoadCameraState",
    ]


@pytest.mark.parametrize(("eof_ns", "time_ns"), [(150, 150), (1, 100), (9_999, 210)])
def test_a_frame_that_nothing_announces_comes_at_its_end_within_the_moment(
    eof_ns: int, time_ns: int
) -> None:
    messages = (_message("carState", 100), _message("carState", 210))
    events = events_of(Moment(0, messages, {"road": _frame(eof_ns)}))
    assert [e.time_ns for e in events if e.frame] == [time_ns]


def test_moved_messages() -> None:
    offset = Offset(time_ns=1_000, frame_id=7)
    event = new_event("roadEncodeIdx", mono_time_ns=50, valid=True)
    event.roadEncodeIdx.frameId = 2**32 - 1
    event.roadEncodeIdx.timestampSof = 40
    event.roadEncodeIdx.segmentId = 3
    data = moved(Message("roadEncodeIdx", 50, event.to_bytes()), offset)
    assert data is not None
    found = read_event(data)
    index = content(found)
    assert (found.logMonoTime, found.valid) == (1_050, True)
    # Ids wrap as the field does; a stamp that was not set stays so.
    assert (index.frameId, index.timestampSof, index.timestampEof) == (6, 1_040, 0)
    assert index.segmentId == 3
    same = _message("carState", 60)
    assert moved(same, Offset()) is same.data
    data = moved(same, offset)
    assert data is not None
    assert read_event(data).logMonoTime == 1_060
    assert moved(Message("carState", 60, b"no event"), offset) is None


def test_damaged_messages_are_moved_without_being_copied() -> None:
    # A builder's copy of a message whose list points nowhere would end this process.
    event = new_event("roadCameraState", mono_time_ns=50)
    event.roadCameraState.frameId, event.roadCameraState.transform = 3, [1.0] * 9
    event.roadCameraState.image = b"abcdefgh"
    good = event.to_bytes()
    for seed in range(2000):
        damaged = bytearray(good)
        rng = random.Random(seed)  # noqa: S311 - damage, no secret
        damaged[rng.randrange(len(good))] = rng.randrange(256)
        data = moved(Message("roadCameraState", 50, bytes(damaged)), Offset(1_000, 7))
        assert data is None or len(data) % 8 == 0
    damaged = bytearray(good)
    damaged[151] = 121
    data = moved(Message("roadCameraState", 50, bytes(damaged)), Offset(1_000, 7))
    assert data is not None
    assert read_event(data).logMonoTime == 1_050
    assert read_event(data).roadCameraState.frameId == 10


# --- the real outlet --------------------------------------------------------------------------


@pytest.mark.alone
def test_rings_and_bus_carry_a_drive(tmp_path: Path) -> None:
    drive = MemoryDrive(count=12)
    bus = ZmqTransport(f"ipc://{tmp_path}")
    outlet = BusOutlet(
        bus, "test-player", drive.info.formats, ["carState", "carParams"], directory=tmp_path
    )
    received: list[int] = []
    states: list[int] = []
    try:
        assert available_streams("test-player", directory=tmp_path) == {"road", "wideRoad"}
        readers = {
            name: FrameRingReader("test-player", name, conflate=False, directory=tmp_path)
            for name in ("road", "wideRoad")
        }
        subscriber = bus.subscriber("carState")
        player = Player(
            drive.info,
            lambda n: prefetch(drive, n),
            outlet,
            MonotonicClock(),
            PlayOptions(speed=10),
        )
        thread = threading.Thread(target=player.run, args=(threading.Event(),))
        thread.start()
        for index in range(12):
            for reader in (readers["road"], readers["wideRoad"]):
                frame = reader.receive(5000)
                assert frame is not None
                assert frame.frame_id == FIRST_ID + index
                assert set(np.unique(frame.data)) == {index}
            received.append(index)
        thread.join()
        while (data := subscriber.receive(200)) is not None:
            states.append(read_event(data).logMonoTime)
        for reader in readers.values():
            reader.close()
    finally:
        outlet.close()
        bus.close()
    assert received == list(range(12))
    assert states == sorted(states)
    assert states[-1] == START_NS + 11 * PERIOD_NS
    assert list(tmp_path.glob("frames_*")) == []


def test_a_camera_that_changes_within_the_drive_is_one_line(tmp_path: Path) -> None:
    outlet = BusOutlet(
        MemoryTransport(), "test-change", {"road": nv12_format(64, 32)}, directory=tmp_path
    )
    frame = _frame(100)
    frame.format = nv12_format(96, 32)
    for stream in ("road", "driver"):
        with pytest.raises(DriveError, match="the camera changed within the drive"):
            outlet.fill(stream, frame)
    outlet.close()


def test_a_service_with_another_publisher_names_the_way_out(tmp_path: Path) -> None:
    bus = MemoryTransport()
    bus.publisher("carState")
    formats = {"road": nv12_format(64, 32)}
    with pytest.raises(ToolError, match=r"carState: .* or leave it out: --block carState"):
        BusOutlet(bus, "test-taken", formats, ["liveDelay", "carState"], directory=tmp_path)
    # Nothing stays behind of what was made before.
    assert list(tmp_path.glob("frames_*")) == []
    bus.publisher("liveDelay")


def test_a_ring_with_another_writer_gives_up_all_services(tmp_path: Path) -> None:
    bus, formats = MemoryTransport(), {"road": nv12_format(64, 32)}
    first = BusOutlet(MemoryTransport(), "test-twice", formats, directory=tmp_path)
    with pytest.raises(FrameError, match="no other writer"):
        BusOutlet(bus, "test-twice", formats, ["carState"], directory=tmp_path)
    bus.publisher("carState")
    first.close()
