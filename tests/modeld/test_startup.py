import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import runtime
from cereal.clock import ManualClock
from cereal.frames import DIRECTORY, FrameFormat, FrameRingWriter, available_streams
from cereal.schema import new_event
from cereal.transport import MemoryTransport
from modeld import startup
from modeld.config import Config
from modeld.episodes import Episodes
from modeld.errors import ConfigError, ModelInterfaceError
from modeld.inputs import CarParameters
from modeld.loop_state import Phase
from modeld.process import run
from modeld.startup import StopRequested, StopSignals, wait_for_cameras, wait_for_car
from runtime.errors import ArtifactError
from tests.modeld.conftest import make_episodes
from tests.runtime import tiny


@pytest.fixture
def server() -> str:
    """A camera server of our own, so that tests of several checkouts do not meet."""
    return f"test_modeld_{os.getpid()}"


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    """Set after 10 s, so that a wait that never ends fails instead of hanging."""
    event = threading.Event()
    timer = threading.Timer(10.0, event.set)
    timer.start()
    yield event
    timer.cancel()


@pytest.mark.parametrize(
    ("streams", "expected"),
    [
        (("road", "wideRoad"), (True, True)),
        (("road",), (True, False)),
        (("wideRoad", "driver"), (False, True)),
    ],
)
def test_connects_to_the_streams_that_exist(
    server: str,
    stop: threading.Event,
    small_format: FrameFormat,
    streams: tuple[str, ...],
    expected: tuple[bool, bool],
) -> None:
    writers = [FrameRingWriter(server, stream, small_format) for stream in streams]
    try:
        cameras = wait_for_cameras(server, stop, make_episodes())
        assert cameras is not None
        assert (cameras.road is not None, cameras.wide is not None) == expected
        # Without a road camera nothing says that the wide one is not all there is.
        assert (cameras.late_wide is not None) is (expected == (True, False))
        cameras.close()
    finally:
        for writer in writers:
            writer.close()


def test_waits_for_cameras_that_come_later(
    server: str, stop: threading.Event, small_format: FrameFormat
) -> None:
    writers: list[FrameRingWriter] = []
    starter = threading.Timer(
        0.15, lambda: writers.append(FrameRingWriter(server, "road", small_format))
    )
    starter.start()
    try:
        cameras = wait_for_cameras(server, stop, make_episodes())
        assert cameras is not None
        cameras.close()
    finally:
        starter.join()
        for writer in writers:
            writer.close()


def test_stream_that_opens_just_after_the_first_is_not_missed(
    server: str,
    stop: threading.Event,
    small_format: FrameFormat,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writers = [FrameRingWriter(server, "road", small_format)]
    look = available_streams

    def look_then_open(name: str) -> set[str]:
        found = look(name)
        if len(writers) == 1:
            writers.append(FrameRingWriter(server, "wideRoad", small_format))
        return found

    monkeypatch.setattr(startup, "available_streams", look_then_open)
    try:
        cameras = wait_for_cameras(server, stop, make_episodes())
        assert cameras is not None
        assert cameras.wide is not None
        cameras.close()
    finally:
        for writer in writers:
            writer.close()


def test_waits_end_when_stopped(server: str) -> None:
    stop = threading.Event()
    threading.Timer(0.05, stop.set).start()
    assert wait_for_cameras(server, stop, make_episodes()) is None
    assert wait_for_car(MemoryTransport(), stop, make_episodes()) is None


def test_waits_for_the_car(stop: threading.Event) -> None:
    transport = MemoryTransport()
    publisher = transport.publisher("carParams")
    event = new_event("carParams", mono_time_ns=1)
    event.carParams.longitudinalActuatorDelay = 0.25
    event.carParams.carFingerprint = "TEST CAR"
    threading.Timer(0.05, lambda: publisher.send(event.to_bytes())).start()
    assert wait_for_car(transport, stop, make_episodes()) == CarParameters(0.25, "TEST CAR")


def car_event(name: str) -> Any:
    event = new_event("carParams", mono_time_ns=1)
    event.carParams.carFingerprint = name
    return event


def write_param(directory: Path, name: str) -> None:
    data = car_event(name).carParams.as_reader().as_builder().to_bytes()
    (directory / ".tmp_value").write_bytes(data)
    (directory / ".tmp_value").rename(directory / "CarParams")


def test_car_of_the_parameter_needs_no_message(stop: threading.Event, tmp_path: Path) -> None:
    write_param(tmp_path, "FILE CAR")
    car = wait_for_car(MemoryTransport(), stop, make_episodes(), tmp_path)
    assert car is not None
    assert car.name == "FILE CAR"


def test_car_of_a_parameter_that_comes_while_waiting(stop: threading.Event, tmp_path: Path) -> None:
    timer = threading.Timer(0.15, write_param, [tmp_path / "params", "FILE CAR"])
    (tmp_path / "params").mkdir()
    timer.start()
    car = wait_for_car(MemoryTransport(), stop, make_episodes(), tmp_path / "params")
    assert car is not None
    assert car.name == "FILE CAR"


def test_damage_in_either_place_is_said_once_and_waiting_goes_on(
    stop: threading.Event, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    transport = MemoryTransport()
    publisher = transport.publisher("carParams")
    (tmp_path / "CarParams").write_bytes(b"garbage!" * 1000)

    def send() -> None:
        # Each is one look: a conflating subscriber would not see them all at once.
        for data in (
            b"garbage!",
            b"garbage?",
            new_event("carState", mono_time_ns=1).to_bytes(),
            car_event("BUS CAR").to_bytes(),
        ):
            time.sleep(0.25)
            publisher.send(data)

    sender = threading.Thread(target=send)
    with caplog.at_level(logging.WARNING):
        sender.start()
        car = wait_for_car(transport, stop, make_episodes(), tmp_path)
        sender.join()
    assert car is not None
    assert car.name == "BUS CAR"
    said = [text for text in caplog.messages if "not used" in text]
    assert [text.split(" ")[0] for text in said] == ["parameter", "message"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signal_sets_the_event_and_the_exit_code(number: signal.Signals, code: int) -> None:
    before = signal.getsignal(number)
    with StopSignals() as stop:
        assert not stop.event.is_set()
        os.kill(os.getpid(), number)
        assert stop.event.wait(1.0)
        # A second signal does not change the verdict of the first.
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.exit_code == code
    assert signal.getsignal(number) is before


def test_a_signal_counts_although_the_loop_was_told_to_end_already() -> None:
    with StopSignals() as stop:
        stop.event.set()  # as the supervisor does that wants a new start
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signalled
        assert stop.exit_code == 130


def test_signal_interrupts_starting() -> None:
    after = []

    def start(stop: StopSignals) -> None:
        with stop.interrupting():
            os.kill(os.getpid(), signal.SIGTERM)
            stop.event.wait(1.0)
            after.append("interrupted too late")

    with StopSignals() as signals:
        with pytest.raises(StopRequested):
            start(signals)
        with pytest.raises(StopRequested):
            start(signals)
    assert after == []


def test_swallowed_signal_is_noticed_at_the_end_of_starting() -> None:
    def start(stop: StopSignals) -> None:
        with stop.interrupting(), suppress(StopRequested):
            os.kill(os.getpid(), signal.SIGTERM)
            stop.event.wait(1.0)

    with StopSignals() as signals, pytest.raises(StopRequested):
        start(signals)


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


def test_run_needs_a_model() -> None:
    with pytest.raises(ConfigError, match="use --model"):
        run(Config())


def test_run_with_a_missing_model_is_one_typed_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"none\.pkl") as caught:
        run(Config(model=tmp_path / "none.pkl"))
    assert caught.value.exit_code == 4


class Polls(threading.Event):
    """Set after so many looks, each of which takes a tenth of a second of a clock set by hand."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        super().__init__()
        self.clock = clock
        self.left = round(10 * seconds)

    def is_set(self) -> bool:
        self.left -= 1
        self.clock.advance_ns(100_000_000)
        return self.left < 0

    def wait(self, timeout: float | None = None) -> bool:
        # The pause between two looks; while streams are missing there is another look without one.
        return self.is_set() if timeout else self.left < 0


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Episodes:
    monkeypatch.setattr(startup, "POLL_S", 0.001)
    return make_episodes(ManualClock())


def polls(episodes: Episodes, seconds: float) -> Polls:
    assert isinstance(episodes.clock, ManualClock)
    return Polls(episodes.clock, seconds)


def test_a_wait_that_takes_long_says_what_is_missing_and_less_and_less_often(
    server: str, waiting: Episodes, caplog: pytest.LogCaptureFixture
) -> None:
    # What a command shows without -v.
    caplog.set_level("WARNING")
    assert wait_for_cameras(server, polls(waiting, 0.9), waiting) is None
    assert waiting.state.phase is Phase.WAITING_CAMERA
    assert caplog.messages == []
    said = make_episodes(waiting.clock)
    assert wait_for_cameras(server, polls(said, 45), said) is None
    cameras = (
        f"waiting for camera streams of '{server}'; start the camera server, or name another one "
        "with --camera-server"
    )
    assert [text.split(" (")[0] for text in caplog.messages] == [cameras] * 3
    assert caplog.messages[1] == f"{cameras} (11.0 s, 111 looks)"


def test_a_wait_for_the_car_says_what_is_missing(
    waiting: Episodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    assert wait_for_car(MemoryTransport(), polls(waiting, 0.9), waiting) is None
    assert caplog.messages == []
    said = make_episodes(waiting.clock)
    assert wait_for_car(MemoryTransport(), polls(said, 5), said) is None
    assert said.state.phase is Phase.WAITING_CAR
    assert [text.split(" (")[0] for text in caplog.messages] == [
        "waiting for carParams on the bus; --demo uses a built-in car instead"
    ]


def test_the_end_of_a_wait_is_said(
    server: str,
    waiting: Episodes,
    small_format: FrameFormat,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("WARNING")
    writers: list[FrameRingWriter] = []

    class Opening(Polls):
        """The camera comes after five seconds."""

        def wait(self, timeout: float | None = None) -> bool:
            if self.left == 50 and not writers:
                writers.append(FrameRingWriter(server, "road", small_format))
            return super().wait(timeout)

    assert isinstance(waiting.clock, ManualClock)
    cameras = wait_for_cameras(server, Opening(waiting.clock, 10), waiting)
    assert cameras is not None
    cameras.close()
    for writer in writers:
        writer.close()
    assert caplog.messages[-1] == f"camera streams of '{server}' found after 4.9 s, 50 looks"


def test_a_camera_that_is_there_and_cannot_be_read_is_said(
    server: str, waiting: Episodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    ring = DIRECTORY / f"frames_{server}_road"
    # Refused to whoever asks, root too.
    ring.symlink_to("elsewhere")
    try:
        assert wait_for_cameras(server, polls(waiting, 5), waiting) is None
    finally:
        ring.unlink()
    (text,) = caplog.messages
    assert text.startswith(
        f"waiting for camera streams of '{server}': {ring}: expected to read a frame ring, got "
    )


@pytest.mark.opencl
def test_an_artifact_of_another_kind_is_refused_before_anything_is_waited_for(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny.write(tmp_path / "plain.pkl")
    # Nothing is built for it either.
    monkeypatch.setattr(runtime, "load_program", lambda *_: pytest.fail("it was loaded"))
    timer = threading.Timer(10.0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        with pytest.raises(ModelInterfaceError, match=r"plain\.pkl: .*without --plain"):
            run(Config(model=path, camera_server=server, demo=True))
    finally:
        timer.cancel()
