"""Prepares the loop: signal handlers, waiting for cameras and for the car.

Every wait is a poll that a signal can end.
"""

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final, Self

from cereal.errors import FrameError, MessageError
from cereal.frames import FrameRingReader, available_streams
from cereal.schema import content, member_name, read_event, reading
from cereal.transport import Subscriber, Transport
from modeld.errors import ParameterError
from modeld.inputs import CarParameters, read_car_parameters
from modeld.loop_state import LoopState, Phase
from modeld.params import car_of_params

logger = logging.getLogger(__name__)

POLL_S: Final = 0.1
# After so many polls without an answer the user is told what is missing: a second.
PATIENCE_POLLS: Final = 10
ROAD_STREAM: Final = "road"
WIDE_STREAM: Final = "wideRoad"
DRIVER_STREAM: Final = "driver"
EXIT_SIGINT: Final = 130


class StopRequested(BaseException):
    """A signal arrived during start-up; not an error, so no handler of errors catches it."""


class StopSignals:
    """Turns SIGTERM and SIGINT into an event, and into an exception while starting.

    The loop looks at the event between frames. Loading an artifact and building its kernels takes
    seconds inside calls that know nothing of the event, so there the handler raises.

    Attributes:
        event: Set by the first signal.
        reload: Set by SIGHUP.
        exit_code: 130 after SIGINT, as shells expect, else 0: SIGTERM is the ordinary stop.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self.reload = threading.Event()
        self.exit_code = 0
        self._raises = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Self:
        """Install the handlers; only the main thread can, elsewhere the caller sets ``event``."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._handle)
            self._previous[signal.SIGHUP] = signal.signal(
                signal.SIGHUP, lambda *_: self.reload.set()
            )
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # came from signal.signal
        self._previous.clear()

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Within, a signal raises.

        Raises:
            StopRequested: A signal arrived before or within.
        """
        self._raises = True
        try:
            if self.event.is_set():
                raise StopRequested
            yield
        finally:
            self._raises = False
        # Code that runs within may have swallowed the exception, a destructor for one.
        if self.event.is_set():
            raise StopRequested

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.event.is_set():
            return
        self.exit_code = EXIT_SIGINT if number == signal.SIGINT else 0
        self.event.set()
        if self._raises:
            raise StopRequested


@dataclass(frozen=True, slots=True)
class CameraStreams:
    """Readers of the connected cameras; at least one is not None."""

    road: FrameRingReader | None
    wide: FrameRingReader | None

    def close(self) -> None:
        """Release the readers."""
        for reader in (self.road, self.wide):
            if reader is not None:
                reader.close()


class _Patience:
    """Says once what is waited for, when it does not come at once.

    Args:
        what: is missing, and what helps.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._polls = 0

    def count(self) -> None:
        """Count a poll without an answer."""
        self._polls += 1
        if self._polls == PATIENCE_POLLS:
            logger.warning("waiting for %s", self._what)


def wait_for_cameras(server: str, stop: threading.Event, state: LoopState) -> CameraStreams | None:
    """Wait until a camera daemon offers a road or wide stream, and connect.

    The main stream conflates: a slow daemon works on the newest frame. With two cameras the extra
    stream does not, so that pairing can find the frame that belongs.

    Args:
        server: Name the camera daemon publishes under.
        stop: Ends the wait.
        state: Where it is told that the loop waits.

    Returns:
        None when stopped.
    """
    logger.info("waiting for camera streams of %r", server)
    patience = _Patience(
        f"camera streams of {server!r}; start the camera server, or name another one with "
        "--camera-server"
    )
    found: set[str] = set()
    state.phase = Phase.WAITING_CAMERA
    while not stop.wait(POLL_S if found else 0.0):
        state.iterated_ns = time.monotonic_ns()
        streams = available_streams(server) & {ROAD_STREAM, WIDE_STREAM}
        # A daemon opens its streams one after the other; believe what two polls agree on.
        if streams and streams == found:
            try:
                return _connect(server, streams)
            except FrameError as error:
                logger.info("camera streams of %r not ready: %s", server, error)
        found = streams
        if not found:
            patience.count()
            if stop.wait(POLL_S):
                break
    return None


def _connect(server: str, streams: set[str]) -> CameraStreams:
    if ROAD_STREAM not in streams:
        return CameraStreams(None, FrameRingReader(server, WIDE_STREAM, conflate=True))
    road = FrameRingReader(server, ROAD_STREAM, conflate=True)
    if WIDE_STREAM not in streams:
        return CameraStreams(road, None)
    try:
        wide = FrameRingReader(server, WIDE_STREAM, conflate=False)
    except FrameError:
        road.close()
        raise
    return CameraStreams(road, wide)


def wait_for_driver_camera(
    server: str, stop: threading.Event, state: LoopState
) -> FrameRingReader | None:
    """Wait until a camera daemon offers a driver stream, and connect; it conflates.

    Args:
        server: Name the camera daemon publishes under.
        stop: Ends the wait.
        state: Where it is told that the loop waits.

    Returns:
        None when stopped.
    """
    logger.info("waiting for the driver camera of %r", server)
    patience = _Patience(
        f"the driver camera of {server!r}; start the camera server, or name another one with "
        "--camera-server"
    )
    state.phase = Phase.WAITING_CAMERA
    while not stop.is_set():
        state.iterated_ns = time.monotonic_ns()
        if DRIVER_STREAM in available_streams(server):
            try:
                return FrameRingReader(server, DRIVER_STREAM, conflate=True)
            except FrameError as error:
                logger.info("driver camera of %r not ready: %s", server, error)
        patience.count()
        stop.wait(POLL_S)
    return None


def wait_for_car(
    transport: Transport,
    stop: threading.Event,
    state: LoopState,
    params_dir: Path | None = None,
) -> CarParameters | None:
    """Wait until the car has been recognised: a parameter or a message, whichever comes first.

    The message comes every 50 s, so that a daemon that starts again while driving takes the
    parameter, which has been there since the car was recognised.

    Args:
        transport: The bus; ``carParams`` comes on it.
        stop: Ends the wait.
        state: Where it is told that the loop waits.
        params_dir: Where the parameter CarParams appears; None: the message only.

    Returns:
        None when stopped.
    """
    logger.info("waiting for carParams; --demo uses a built-in car instead")
    patience = _Patience(
        "carParams on the bus"
        + (f" or in {params_dir}" if params_dir is not None else "")
        + "; --demo uses a built-in car instead"
    )
    look = _CarLook(transport.subscriber("carParams", conflate=True), params_dir)
    try:
        state.phase = Phase.WAITING_CAR
        while not stop.is_set():
            state.iterated_ns = time.monotonic_ns()
            car = look.take()
            if car is not None:
                return car
            patience.count()
    finally:
        look.subscriber.close()
    return None


@dataclass(slots=True)
class _CarLook:
    """Looks for a car in both places; says once of each what is wrong with what lies there."""

    subscriber: Subscriber
    params_dir: Path | None
    _said: set[str] = field(default_factory=set)

    def take(self) -> CarParameters | None:
        """Look at the parameter, then wait `POLL_S` for a message."""
        try:
            car = None if self.params_dir is None else car_of_params(self.params_dir)
            if car is not None:
                return car
        except ParameterError as error:
            self._say("parameter", error)
        data = self.subscriber.receive(timeout_ms=int(POLL_S * 1000))
        if data is None:
            return None
        try:
            return _car_of_message(data)
        except MessageError as error:
            self._say("message", error)
            return None

    def _say(self, place: str, error: Exception) -> None:
        if place not in self._said:
            self._said.add(place)
            logger.warning("%s not used, still waiting for carParams: %s", place, error)


def _car_of_message(data: bytes) -> CarParameters:
    """Return the car of a carParams Event.

    Raises:
        MessageError: the Event is damaged, or another one.
    """
    event = read_event(data)
    if member_name(event) != "carParams":
        raise MessageError(
            f"event: expected carParams, found {member_name(event)}; stop its sender"
        )
    with reading("carParams"):
        return read_car_parameters(content(event))
