"""Prepares the loop: installs signal handlers and waits for the cameras and the car.

The functions `wait_for_cameras`, `wait_for_driver_camera` and `wait_for_car` poll, so a signal can
end them. They log what is missing, and report the phase in the loop's state.
"""

import logging
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Final, Self

from cereal.cameras import CameraServer, CameraSource
from cereal.errors import CerealError, FrameError, MessageError
from cereal.frames import Frame, FrameFormat
from cereal.schema import content, member_name, read_event, reading
from cereal.transport import Subscriber, Transport
from modeld.errors import ModeldError
from modeld.health.side_reports import why_unusable
from modeld.state.episodes import NS_PER_S, Episodes, Kind
from modeld.state.loop_state import LoopState, Phase
from modeld.vehicle.inputs import CarParameters, read_car_parameters
from modeld.vehicle.model_params import CAR
from modeld.vehicle.params import Params

if TYPE_CHECKING:
    import runtime

logger = logging.getLogger(__name__)

POLL_S: Final = 0.1
# Waits longer than this are logged, with the missing input.
PATIENCE_NS: Final = NS_PER_S
# Interval between two attempts to open a camera that was missing when the loop started.
LOOK_NS: Final = NS_PER_S
ROAD_STREAM: Final = "road"
WIDE_STREAM: Final = "wideRoad"
DRIVER_STREAM: Final = "driver"
EXIT_SIGINT: Final = 130
# Required limit of open files. A daemon with two cameras, the bus and a CPU driver has 57 open
# (docs/soak.md).
LEAST_OPEN_FILES: Final = 64


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """The parts that a loop receives from its process."""

    program: "runtime.Program"  # program of the first model
    transport: Transport  # the bus
    cameras: CameraServer
    fallback: "runtime.Program | None" = None  # program of the fallback model
    state: LoopState = field(default_factory=LoopState)  # receives the loop's progress


class StopRequested(BaseException):
    """A signal arrived during start-up. It is a BaseException, so no error handler catches it."""


class StopSignals:
    """Converts SIGTERM and SIGINT to an event, and to an exception during start-up.

    The loop checks the event between frames. Loading an artifact and building its kernels takes
    seconds in calls that do not check the event, so the handler raises an exception there.

    Attributes:
        event: Ends the loop; set by the first signal or by a user of this object.
        reload: Set by SIGHUP.
        signalled: SIGTERM or SIGINT has arrived.
        exit_code: 130 after SIGINT, as shells expect, else 0.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self.reload = threading.Event()
        self.signalled = False
        self.exit_code = 0
        self._raises = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Self:
        """Install the handlers, in the main thread only; elsewhere the caller sets ``event``."""
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
        """Raise StopRequested for a signal that arrived before or within the block."""
        self._raises = True
        try:
            if self.event.is_set():
                raise StopRequested
            yield
        finally:
            self._raises = False
        # Code in the block, such as a destructor, can swallow the exception.
        if self.event.is_set():
            raise StopRequested

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signalled:
            return
        self.signalled = True
        self.exit_code = EXIT_SIGINT if number == signal.SIGINT else 0
        self.event.set()
        if self._raises:
            raise StopRequested


def check_open_files() -> None:
    """Raise ModeldError if the limit of open files is too low for a drive.

    Without this check, opening the bus, a camera or the kernel cache would fail later, each with a
    different error.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= limit < LEAST_OPEN_FILES:
        raise ModeldError(
            f"open files: expected a limit of at least {LEAST_OPEN_FILES}, found {limit}; raise "
            "LimitNOFILE of the unit, or `ulimit -n`"
        )


class LateCamera:
    """A frame source for a camera that may appear later. It delivers every frame.

    It tries to open the camera once a second, like a reader whose camera process has ended (ADR
    0020). `now_ns` is the monotonic clock that times the attempts.
    """

    def __init__(
        self,
        cameras: CameraServer,
        stream: str,
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._cameras = cameras
        self._stream = stream
        self._now_ns = now_ns
        self._looked_ns: int | None = None
        self._reader: CameraSource | None = None

    @property
    def format(self) -> FrameFormat:
        """Format of the frames; raises FrameError until the camera has been found."""
        if self._reader is None:
            raise FrameError(
                f"cameras: expected the stream {self._stream} of {self._cameras.name!r}, found "
                "none yet; receive a frame first"
            )
        return self._reader.format

    def receive(self, timeout_ms: int) -> Frame | None:
        """Return the next frame, or None; does not wait for a missing camera."""
        reader = self._reader or self._look()
        return None if reader is None else reader.receive(timeout_ms)

    def is_intact(self) -> bool:
        """Return whether the last received frame has not been overwritten."""
        return self._reader is not None and self._reader.is_intact()

    def close(self) -> None:
        """Stop receiving."""
        if self._reader is not None:
            self._reader.close()

    def _look(self) -> CameraSource | None:
        now_ns = self._now_ns()
        if self._looked_ns is not None and now_ns - self._looked_ns < LOOK_NS:
            return None
        self._looked_ns = now_ns
        try:
            self._reader = self._cameras.reader(self._stream, conflate=False)
        except CerealError:
            # It is missing or unreadable; the reason was logged when the loop started.
            return None
        return self._reader


@dataclass(frozen=True, slots=True)
class CameraStreams:
    """Readers of the connected cameras; at least one of road and wide is not None."""

    road: CameraSource | None
    wide: CameraSource | None
    late_wide: LateCamera | None = None  # replaces `wide` while only the road camera exists

    @property
    def names(self) -> str:
        """Names of the connected cameras."""
        named = {"road": self.road, "wide": self.wide}
        return " ".join(name for name, reader in named.items() if reader is not None)

    def close(self) -> None:
        """Release the readers."""
        for reader in (self.road, self.wide, self.late_wide):
            if reader is not None:
                reader.close()


def wait_for_cameras(
    server: CameraServer, stop: threading.Event, episodes: Episodes
) -> CameraStreams | None:
    """Wait until a camera daemon offers a road or wide stream; return readers, None when stopped.

    The reader of the main stream conflates: it returns the newest frame only. With two cameras, the
    other one returns every frame, so pairing can find the matching one. `stop` ends the wait.
    `episodes` and its state report the wait.
    """
    logger.info("waiting for camera streams of %r", server.name)
    kind = _cameras_missing(f"camera streams of {server.name!r}")
    wanted, state = {ROAD_STREAM, WIDE_STREAM}, episodes.state
    found: set[str] = set()
    state.phase = Phase.WAITING_CAMERA
    while not stop.wait(POLL_S if found else 0.0):
        state.iterated_ns = time.monotonic_ns()
        streams = server.available_streams() & wanted
        unusable = why_unusable(server, wanted)
        # A camera daemon opens its streams one after another. So unless both exist, two consecutive
        # polls must find the same one.
        if streams and (streams == found or len(streams) == 2):
            try:
                cameras = _connect(server, streams)
            except FrameError as error:
                unusable = unusable or str(error)
            else:
                episodes.end(kind)
                if unusable:
                    logger.warning("continuing without one of the cameras: %s", unusable)
                return cameras
        found = streams
        if not found or unusable:
            episodes.happen(kind, _what_is_missing(kind.name, unusable))
        if not found and stop.wait(POLL_S):
            break
    return None


def wait_for_driver_camera(
    server: CameraServer, stop: threading.Event, episodes: Episodes
) -> CameraSource | None:
    """Wait for a driver stream; return a reader of its newest frames, None when stopped.

    `stop` ends the wait. `episodes` and its state report the wait.
    """
    logger.info("waiting for the driver camera of %r", server.name)
    kind = _cameras_missing(f"the driver camera of {server.name!r}")
    state = episodes.state
    state.phase = Phase.WAITING_CAMERA
    while not stop.is_set():
        state.iterated_ns = time.monotonic_ns()
        unusable = why_unusable(server, {DRIVER_STREAM})
        if DRIVER_STREAM in server.available_streams():
            try:
                camera = server.reader(DRIVER_STREAM, conflate=True)
            except FrameError as error:
                unusable = unusable or str(error)
            else:
                episodes.end(kind)
                return camera
        episodes.happen(kind, _what_is_missing(kind.name, unusable))
        stop.wait(POLL_S)
    return None


def _cameras_missing(what: str) -> Kind:
    return Kind(
        what,
        over=f"{what} found",
        unit="attempts",
        level=logging.WARNING,
        patience_ns=PATIENCE_NS,
    )


def _what_is_missing(what: str, unusable: str) -> str:
    if unusable:
        return f"waiting for {what}: {unusable}"
    return f"waiting for {what}; start the camera server, or name another one with --camera-server"


def _connect(server: CameraServer, streams: set[str]) -> CameraStreams:
    if ROAD_STREAM not in streams:
        return CameraStreams(None, server.reader(WIDE_STREAM, conflate=True))
    road = server.reader(ROAD_STREAM, conflate=True)
    if WIDE_STREAM not in streams:
        return CameraStreams(road, None, LateCamera(server, WIDE_STREAM))
    try:
        wide = server.reader(WIDE_STREAM, conflate=False)
    except FrameError:
        road.close()
        raise
    return CameraStreams(road, wide)


def wait_for_car(
    transport: Transport,
    stop: threading.Event,
    episodes: Episodes,
    params: Params | None = None,
) -> CarParameters | None:
    """Wait until a parameter or a carParams message has the car; return it, None when stopped.

    The message is sent only every 50 s. A daemon that restarts while driving therefore uses the
    parameter, which exists from the time when the car was recognized. Without `params` only the
    message is used. `stop` ends the wait. `episodes` and its state report the wait.
    """
    logger.info("waiting for carParams; --demo uses a built-in car instead")
    place = "" if params is None else f" or in {params.directory}"
    kind = Kind(
        "no car",
        over="carParams found",
        unit="attempts",
        level=logging.WARNING,
        patience_ns=PATIENCE_NS,
    )
    look = _CarFinder(transport.subscriber("carParams", conflate=True), params)
    state = episodes.state
    try:
        state.phase = Phase.WAITING_CAR
        while not stop.is_set():
            state.iterated_ns = time.monotonic_ns()
            car = look.take()
            if car is not None:
                episodes.end(kind)
                return car
            text = f"waiting for carParams on the bus{place}; --demo uses a built-in car instead"
            episodes.happen(kind, text)
    finally:
        look.subscriber.close()
    return None


@dataclass(slots=True)
class _CarFinder:
    """Looks for the car in the parameter and on the bus; logs a bad message once."""

    subscriber: Subscriber
    params: Params | None
    _is_logged: bool = False

    def take(self) -> CarParameters | None:
        """Return the car in the parameter, else wait `POLL_S` for a message; None without one."""
        car = None if self.params is None else self.params.usable(CAR)
        if car is not None:
            return car
        data = self.subscriber.receive(timeout_ms=int(POLL_S * 1000))
        if data is None:
            return None
        try:
            return _car_of_message(data)
        except MessageError as error:
            if not self._is_logged:
                self._is_logged = True
                logger.warning("message not used, still waiting for carParams: %s", error)
            return None


def _car_of_message(data: bytes) -> CarParameters:
    """Return the car in a carParams Event; raise MessageError if it is damaged or another one."""
    event = read_event(data)
    if member_name(event) != "carParams":
        raise MessageError(
            f"event: expected carParams, found {member_name(event)}; stop its sender"
        )
    with reading("carParams"):
        return read_car_parameters(content(event))
