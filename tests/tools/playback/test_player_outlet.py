"""What a player sends and where: services, moved messages, real rings on a real bus."""

import random
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from cereal.cameras import CameraServer, RingCameras, open_cameras
from cereal.clock import MonotonicClock
from cereal.errors import FrameError
from cereal.frames import Frame, nv12_format
from cereal.schema import content, read_event
from cereal.stacks import DEFAULT_STACK
from cereal.transport import MemoryTransport, ZmqTransport
from tests.cereal.shared import own_rings
from tests.tools.messages import event_of
from tests.tools.playback.synthetic_drive import (
    FIRST_ID,
    PERIOD_NS,
    START_NS,
    brightness,
    drive_to_play,
)
from tests.tools.playback.tape import play
from tools.drives.drive import Message, Moment
from tools.errors import DriveError, ToolError
from tools.playback.player.outlet import BusOutlet, ServiceFilter
from tools.playback.player.player import Player, PlayOptions
from tools.playback.player.stamps import Offset, events_of, moved
from tools.playback.threads import prefetch

LAYOUT = nv12_format(64, 32)


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


def test_a_blocked_service_is_not_sent() -> None:
    _, tape, _ = play(drive_to_play(2), services=ServiceFilter(block=frozenset({"carState"})))
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


def _message(service: str, time_ns: int) -> Message:
    return Message(service, time_ns, event_of(service, time_ns))


def _frame(eof_ns: int) -> Frame:
    return Frame(np.zeros(LAYOUT.size, np.uint8), LAYOUT, 5, eof_ns - 10, eof_ns)


def test_frames_come_with_the_states_that_announce_them_extra_cameras_never_after_road() -> None:
    stamps = {"roadCameraState": 200, "wideRoadCameraState": 230}
    names = ("carState", "roadCameraState", "carState", "wideRoadCameraState")
    messages = tuple(
        _message(name, stamps.get(name, 100 + 110 * (i > 0))) for i, name in enumerate(names)
    )
    moment = Moment(0, messages, {"wideRoad": _frame(150), "road": _frame(155)})
    found = []
    for event in events_of(moment):
        found += [event.message.service] if event.message else []
        found += [event.frame[0]] if event.frame else []
    assert found == ["carState", "wideRoad", "road", *names[1:]]


@pytest.mark.parametrize(("eof_ns", "time_ns"), [(150, 150), (1, 100), (9_999, 210)])
def test_a_frame_that_nothing_announces_comes_at_its_end_within_the_moment(
    eof_ns: int, time_ns: int
) -> None:
    messages = (_message("carState", 100), _message("carState", 210))
    events = events_of(Moment(0, messages, {"road": _frame(eof_ns)}))
    assert [e.time_ns for e in events if e.frame] == [time_ns]


def test_moved_messages() -> None:
    offset = Offset(time_ns=1_000, frame_id=7)
    encoded = event_of("roadEncodeIdx", 50, frameId=2**32 - 1, timestampSof=40, segmentId=3)
    data = moved(Message("roadEncodeIdx", 50, encoded), offset)
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
    # A builder's copy of a message whose list points nowhere would end this process.
    lists = {"transform": [1.0] * 9, "image": b"abcdefgh"}
    good = event_of("roadCameraState", 50, frameId=2**31 + 3, **lists)
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
    assert read_event(data).roadCameraState.frameId == 2**31 + 10


@pytest.mark.alone
@pytest.mark.parametrize("address", ["test-player", "visionipc:test-player"])
def test_cameras_and_bus_carry_a_drive(tmp_path: Path, address: str) -> None:
    drive = drive_to_play(12)
    bus = ZmqTransport(f"ipc://{tmp_path}")
    services = ["carState", "carParams"]
    with ExitStack() as opened:
        opened.callback(bus.close)
        prefix = opened.enter_context(own_rings())
        formats = drive.info.formats
        outlet = BusOutlet(bus, address, formats, services, prefix=prefix, directory=tmp_path)
        opened.callback(outlet.close)
        cameras: CameraServer = RingCameras(address, directory=tmp_path)
        if ":" in address:
            cameras = open_cameras(address, DEFAULT_STACK, prefix=prefix)
        opened.callback(cameras.close)
        assert cameras.available_streams() == {"road", "wideRoad"}
        readers = {name: cameras.reader(name, conflate=False) for name in ("road", "wideRoad")}
        subscriber = bus.subscriber("carState")
        options = PlayOptions(speed=2)
        player = Player(drive.info, lambda n: prefetch(drive, n), outlet, MonotonicClock(), options)
        thread = threading.Thread(target=player.run, args=(threading.Event(),))
        thread.start()
        for index in range(12):
            for name, reader in readers.items():
                frame = reader.receive(5000)
                assert frame is not None
                assert frame.frame_id == FIRST_ID + index
                assert set(np.unique(frame.data)) == {brightness(index, name)}
        thread.join()
        states = []
        while (data := subscriber.receive(200)) is not None:
            states.append(read_event(data).logMonoTime)
        for reader in readers.values():
            reader.close()
    assert (states, states[-1]) == (sorted(states), START_NS + 11 * PERIOD_NS)
    assert list(tmp_path.glob("frames_*")) == []


def test_services_and_rings_that_cannot_be_written(tmp_path: Path) -> None:
    bus, formats = MemoryTransport(), {"road": LAYOUT}
    bus.publisher("carState")
    with pytest.raises(ToolError, match=r"carState: .* or leave it out: --block carState"):
        BusOutlet(bus, "test-taken", formats, ["liveDelay", "carState"], directory=tmp_path)
    # Nothing stays behind of what was made before.
    assert list(tmp_path.glob("frames_*")) == []
    bus.publisher("liveDelay")
    # A ring with another writer gives up all services.
    bus, formats = MemoryTransport(), {"road": LAYOUT}
    first = BusOutlet(MemoryTransport(), "test-twice", formats, directory=tmp_path)
    with pytest.raises(FrameError, match="no other writer"):
        BusOutlet(bus, "test-twice", formats, ["carState"], directory=tmp_path)
    bus.publisher("carState")
    first.close()
    # A camera may not change within the drive.
    outlet = BusOutlet(MemoryTransport(), "test-change", {"road": LAYOUT}, directory=tmp_path)
    frame = _frame(100)
    frame.format = nv12_format(96, 32)
    for stream in ("road", "driver"):
        with pytest.raises(DriveError, match="the camera changed within the drive"):
            outlet.fill(stream, frame)
    outlet.close()
