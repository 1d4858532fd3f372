"""Before the loop: signals, and waits for cameras and for the car that say what is missing."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import runtime
from cereal import frames
from cereal.cameras import RingCameras
from cereal.clock import ManualClock
from cereal.frames import DIRECTORY, FrameRingWriter, available_streams
from cereal.schema import new_event
from cereal.transport import MemoryTransport
from cereal.visionipc import VisionIpcCameras, VisionIpcServer
from modeld import process, startup
from modeld.errors import ConfigError, InternalError, ModelInterfaceError
from modeld.process import run
from modeld.service.config import Config
from modeld.startup import (
    StopRequested,
    StopSignals,
    wait_for_cameras,
    wait_for_car,
    wait_for_driver_camera,
)
from modeld.state.episodes import Episodes
from modeld.state.loop_state import Phase
from modeld.vehicle.inputs import CarParameters
from modeld.vehicle.params import Params
from tests.modeld.bench import Log, Patch, car_event, car_parameter
from tests.modeld.conftest import make_episodes
from tests.modeld.fake_program import SMALL
from tests.runtime import tiny

# A camera server of our own, so that tests of several checkouts do not meet.
SERVER = f"test_modeld_{os.getpid()}"
Open = Callable[[str], None]


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    """Set after 10 s, so that a wait that never ends fails instead of hanging."""
    event = threading.Event()
    timer = threading.Timer(10.0, event.set)
    timer.start()
    yield event
    timer.cancel()


@pytest.fixture
def open_stream() -> Iterator[Open]:
    with ExitStack() as resources:

        def open_one(stream: str) -> None:
            resources.callback(FrameRingWriter(SERVER, stream, SMALL).close)

        yield open_one


def found_streams(stop: threading.Event, episodes: Episodes | None = None) -> tuple[bool, ...]:
    """Wait; whether there is a road and a wide camera, and whether the latter is looked for."""
    cameras = wait_for_cameras(RingCameras(SERVER), stop, episodes or make_episodes())
    assert cameras is not None
    cameras.close()
    return tuple(one is not None for one in (cameras.road, cameras.wide, cameras.late_wide))


def test_connects_by_visionipc(stop: threading.Event, tmp_path: Path) -> None:
    bus = MemoryTransport()
    server = VisionIpcServer("camerad", bus, directory=tmp_path)
    for stream in ("road", "wideRoad", "driver"):
        server.create_buffers(stream, 4, SMALL)
    start = threading.Timer(0.1, server.start)
    start.start()
    cameras = VisionIpcCameras("camerad", bus, directory=tmp_path)
    found = wait_for_cameras(cameras, stop, make_episodes())
    assert found is not None
    assert found.names == "road wide"
    for frame_id in range(3):
        for stream in ("road", "wideRoad"):
            server.next_buffer(stream)[:] = frame_id
            server.send(stream, frame_id, 0, 0)
    # The main camera conflates, the extra one does not.
    for reader, expected in ((found.road, [2]), (found.wide, [0, 1, 2])):
        assert reader is not None
        frames = [reader.receive(0) for _ in range(len(expected) + 1)]
        assert [frame and frame.frame_id for frame in frames] == [*expected, None]
    driver = wait_for_driver_camera(cameras, stop, make_episodes())
    assert driver is not None
    server.next_buffer("driver")
    server.send("driver", 7, 0, 0)
    frame = driver.receive(0)
    assert frame is not None
    assert frame.frame_id == 7
    driver.close()
    found.close()
    cameras.close()
    start.join()
    server.close()


@pytest.mark.parametrize(
    ("streams", "expected"),
    [
        (("road", "wideRoad"), (True, True, False)),
        (("road",), (True, False, True)),
        # Without a road camera nothing says that the wide one is not all there is.
        (("wideRoad", "driver"), (False, True, False)),
    ],
)
def test_connects_to_the_streams_that_exist(
    stop: threading.Event, open_stream: Open, streams: tuple[str, ...], expected: tuple[bool, ...]
) -> None:
    for stream in streams:
        open_stream(stream)
    assert found_streams(stop) == expected


def test_stream_that_opens_just_after_the_first_is_not_missed(
    stop: threading.Event, open_stream: Open, monkeypatch: Patch
) -> None:
    open_stream("road")
    opened: list[str] = []

    def look_then_open(name: str, **where: Path) -> set[str]:
        found = available_streams(name, **where)
        if not opened:
            opened.append("wideRoad")
            open_stream("wideRoad")
        return found

    monkeypatch.setattr(frames, "available_streams", look_then_open)
    assert found_streams(stop)[1]


def write_param(directory: Path) -> None:
    (directory / ".tmp_value").write_bytes(car_parameter(car_event("FILE CAR")))
    (directory / ".tmp_value").rename(directory / "CarParams")


@pytest.mark.parametrize("delay_s", [0.0, 0.15])
def test_car_of_the_parameter_needs_no_message_and_may_come_while_waiting(
    stop: threading.Event, tmp_path: Path, delay_s: float
) -> None:
    timer = threading.Timer(delay_s, write_param, [tmp_path])
    timer.start()
    if not delay_s:
        timer.join()
    car = wait_for_car(MemoryTransport(), stop, make_episodes(), Params(tmp_path))
    assert car == CarParameters(0.25, "FILE CAR")
    timer.join()


def test_damage_in_either_place_is_said_once_and_waiting_goes_on(
    stop: threading.Event, tmp_path: Path, caplog: Log, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(startup, "POLL_S", 0.01)
    transport = MemoryTransport()
    publisher = transport.publisher("carParams")
    (tmp_path / "CarParams").write_bytes(b"garbage!" * 1000)

    def send() -> None:
        # Each is one look: a conflating subscriber would not see them all at once.
        other = new_event("carState", mono_time_ns=1).to_bytes()
        for data in (b"garbage!", b"garbage?", other, car_event("BUS CAR").to_bytes()):
            time.sleep(0.1)
            publisher.send(data)

    sender = threading.Thread(target=send)
    sender.start()
    car = wait_for_car(transport, stop, make_episodes(), Params(tmp_path))
    sender.join()
    assert car == CarParameters(0.25, "BUS CAR")
    said = [text for text in caplog.messages if "not used" in text]
    assert [text.split(" ")[0] for text in said] == ["parameter", "message"]


@pytest.mark.parametrize(
    ("number", "code", "reload"),
    [(signal.SIGTERM, 0, False), (signal.SIGINT, 130, False), (signal.SIGHUP, 130, True)],
)
def test_a_signal_ends_with_its_exit_code_or_asks_for_a_reload(
    number: signal.Signals, code: int, reload: bool
) -> None:
    before = signal.getsignal(number)
    with StopSignals() as stop:
        assert not stop.event.is_set()
        os.kill(os.getpid(), number)
        assert (stop.reload if reload else stop.event).wait(1.0)
        assert (stop.reload.is_set(), stop.event.is_set()) == (reload, not reload)
        assert stop.signalled is not reload
        # A second signal does not change the verdict of the first; a reload is none.
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.exit_code == code
    assert signal.getsignal(number) is before


def test_a_signal_counts_although_the_loop_was_told_to_end_already() -> None:
    with StopSignals() as stop:
        stop.event.set()  # as the supervisor does that wants a new start
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signalled
        assert stop.exit_code == 130


@pytest.mark.parametrize("swallowed", [False, True])
def test_signal_interrupts_starting_or_is_noticed_at_its_end(swallowed: bool) -> None:
    after, hidden = [], [StopRequested] if swallowed else []

    def start(stop: StopSignals) -> None:
        with stop.interrupting(), suppress(*hidden):
            os.kill(os.getpid(), signal.SIGTERM)
            stop.event.wait(1.0)
            after.append("interrupted too late")

    with StopSignals() as signals:
        for _ in range(2):
            with pytest.raises(StopRequested):
                start(signals)
    assert after == []


def test_signals_are_left_alone_outside_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def inside() -> None:
        with StopSignals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [before]


class Polls(threading.Event):
    """Set after so many looks, each of which takes a tenth of a second of a clock set by hand."""

    def __init__(self, episodes: Episodes, seconds: float) -> None:
        super().__init__()
        assert isinstance(episodes.clock, ManualClock)
        self.clock = episodes.clock
        self.left = round(10 * seconds)

    def is_set(self) -> bool:
        self.left -= 1
        self.clock.advance_ns(100_000_000)
        return self.left < 0

    def wait(self, timeout: float | None = None) -> bool:
        # The pause between two looks; while streams are missing there is another look without one.
        return self.is_set() if timeout else self.left < 0


@pytest.fixture
def waiting(monkeypatch: Patch) -> Episodes:
    monkeypatch.setattr(startup, "POLL_S", 0.001)
    return make_episodes()


CAMERAS = (
    f"waiting for camera streams of '{SERVER}'; start the camera server, or name another one "
    "with --camera-server"
)
CAR = "waiting for carParams on the bus; --demo uses a built-in car instead"


def waits(what: str, episodes: Episodes, seconds: float) -> object:
    polls = Polls(episodes, seconds)
    if what == CAR:
        return wait_for_car(MemoryTransport(), polls, episodes)
    return wait_for_cameras(RingCameras(SERVER), polls, episodes)


@pytest.mark.parametrize(
    ("what", "phase", "seconds", "times"),
    [(CAMERAS, Phase.WAITING_CAMERA, 45, 3), (CAR, Phase.WAITING_CAR, 5, 1)],
)
def test_a_wait_that_takes_long_says_what_is_missing_and_less_and_less_often(
    waiting: Episodes, caplog: Log, what: str, phase: Phase, seconds: float, times: int
) -> None:
    # What a command shows without -v.
    assert waits(what, waiting, 0.9) is None
    assert waiting.state.phase is phase
    assert caplog.messages == []
    assert waits(what, make_episodes(waiting.clock), seconds) is None
    assert [text.split(" (")[0] for text in caplog.messages] == [what] * times
    assert times == 1 or caplog.messages[1] == f"{what} (11.0 s, 111 attempts)"


def test_the_end_of_a_wait_is_said(waiting: Episodes, open_stream: Open, caplog: Log) -> None:
    class Opening(Polls):
        """The camera comes after five seconds."""

        def wait(self, timeout: float | None = None) -> bool:
            if self.left == 50 and not available_streams(SERVER):
                open_stream("road")
            return super().wait(timeout)

    assert found_streams(Opening(waiting, 10), waiting)[0]
    assert caplog.messages[-1] == f"camera streams of '{SERVER}' found after 4.9 s, 50 attempts"


def test_a_camera_that_is_there_and_cannot_be_read_is_said(waiting: Episodes, caplog: Log) -> None:
    ring = DIRECTORY / f"frames_{SERVER}_road"
    # Refused to whoever asks, root too.
    ring.symlink_to("elsewhere")
    try:
        assert waits(CAMERAS, waiting, 5) is None
    finally:
        ring.unlink()
    (text,) = caplog.messages
    assert text.startswith(
        f"waiting for camera streams of '{SERVER}': {ring}: expected to read a frame ring, got "
    )


def test_run_needs_a_model_and_a_defect_is_one_line(monkeypatch: Patch, caplog: Log) -> None:
    with pytest.raises(ConfigError, match="use --model"):
        run(Config())

    def fails(*_: object) -> None:
        raise ValueError("first line\nsecond")

    monkeypatch.setattr(process, "load_models", fails)
    expected = "daemon: unexpected ValueError: first line; this is a defect, please"
    with pytest.raises(InternalError, match=expected) as caught:
        run(Config())
    assert "\n" not in str(caught.value)
    assert "unexpected error" in caplog.text


@pytest.mark.opencl
def test_an_artifact_of_another_kind_is_refused_before_anything_is_waited_for(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    path = tiny.write(tmp_path / "plain.pkl")
    # Nothing is built for it either.
    monkeypatch.setattr(runtime, "load_program", lambda *_: pytest.fail("it was loaded"))
    timer = threading.Timer(10.0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        with pytest.raises(ModelInterfaceError, match=r"plain\.pkl: .*without --plain"):
            run(Config(model=path, camera_server=SERVER, demo=True))
    finally:
        timer.cancel()
