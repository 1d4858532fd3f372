"""The process of ``modeld run``: signals, the models, and the loop that their kind asks for.

A driving artifact is run by ``modeld.daemon``, one of driver monitoring by ``modeld.monitoring``.
The loop has a thread of its own; this one is its supervisor's.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NoReturn

from cereal.errors import CerealError, MessageError
from cereal.schema import content, read_event, reading
from cereal.transport import Transport, ZmqTransport
from cereal.transport.base import Subscriber
from modeld import daemon, monitoring
from modeld.config import Config
from modeld.driving_model import check_interface
from modeld.errors import InternalError, ModeldError
from modeld.fallback_marker import FallbackMarker, state_directory
from modeld.load_models import Check, Models, load_models
from modeld.loop_state import LoopState
from modeld.notify import Notifier
from modeld.service_parts import ServiceParts
from modeld.startup import StopRequested, StopSignals
from modeld.supervisor import Ending, Loop, Supervisor
from runtime.errors import RuntimeFault

logger = logging.getLogger(__name__)

# A device state of another drive says nothing of this one.
_STALE_NS: Final = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Kind:
    """How artifacts of one kind are run.

    Attributes:
        check: Refuses metadata that the loop cannot use; raises ModelInterfaceError.
        start: Opens cameras, registers them to be closed, and waits for what the loop needs; None
            when stopped.
    """

    check: Check
    start: Callable[[Config, ServiceParts, threading.Event, ExitStack], Loop | None]


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "driving": Kind(check_interface, daemon.start),
        "monitoring": Kind(monitoring.check_monitoring, monitoring.start),
    }
)


def run(config: Config) -> int:
    """Run the loop of the artifact's kind until SIGTERM or SIGINT.

    Args:
        config: Settings; ``model`` is required.

    Returns:
        Exit code: 0 after SIGTERM, 130 after SIGINT.

    Raises:
        ModeldError: Start-up or the loop failed; likewise ``RuntimeFault`` and ``CerealError``.
            Each message is one line for the user and each class has an ``exit_code``.
    """
    notifier = Notifier.from_environment(os.environ)
    with StopSignals() as stop:
        service = _Service(config, stop, notifier)
        try:
            ending = service.run()
        except StopRequested:
            logger.info("stopped while starting")
            ending = Ending.STOPPED
        # These carry a message for the user and an exit code of their own.
        except (ModeldError, RuntimeFault, CerealError) as error:
            if service.left_behind:
                logger.error("%s", error)  # noqa: TRY400 -- the message is for a user
                _exit_now(error.exit_code)
            raise
        except Exception as error:
            logger.exception("unexpected error")
            # An exception may have no text, or several lines; the user gets one.
            reason = (str(error).splitlines() or [""])[0]
            raise InternalError(
                f"daemon: unexpected {type(error).__name__}: {reason}; this is a defect, please "
                "report it with the log"
            ) from error
        finally:
            notifier.stopping()
    if ending is Ending.RELOAD:
        _start_anew(notifier)
    logger.info("stopping")
    if service.left_behind:
        _exit_now(stop.exit_code)
    return stop.exit_code


def _exit_now(exit_code: int) -> NoReturn:
    """End without Python's own shutdown, which may wait for what a driver never finishes."""
    logging.shutdown()
    os._exit(exit_code)


def _start_anew(notifier: Notifier) -> NoReturn:
    """Replace this process by one that starts from the beginning, with the same identity."""
    logger.info("starting anew")
    # An ignored signal stays so until the new process has its handler: it must not be ended by it.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    notifier.reloading(time.monotonic_ns())
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, arguments, {**os.environ, **notifier.environment})  # noqa: S606 -- our own command line


class _Service:
    """One life of the process between two starts.

    Attributes:
        left_behind: As of `Supervisor`.
    """

    def __init__(self, config: Config, stop: StopSignals, notifier: Notifier) -> None:
        self.left_behind = False
        self._config = config
        self._stop = stop
        self._notifier = notifier
        self._marker = FallbackMarker(state_directory(config.state_dir))
        self._resources = ExitStack()

    def run(self) -> Ending:
        """Load, watch the loop, and close what was opened.

        Raises:
            As `run`, besides StopRequested: a signal arrived while loading.
        """
        try:
            # Loading takes seconds inside calls that know no signals, so these interrupt it by an
            # exception.
            with self._stop.interrupting():
                models = load_models(
                    self._config,
                    {name: kind.check for name, kind in KINDS.items()},
                    self._resources,
                    self._marker.read(),
                )
            supervisor = self._supervisor(models)
            self._notifier.ready()
            try:
                ending = supervisor.run()
            finally:
                self.left_behind = supervisor.left_behind
            # A parked car has ended its drive.
            if ending is Ending.RELOAD:
                self._marker.clear()
            return ending
        finally:
            if self.left_behind:
                # What is left in the driver holds the device: closing it would wait for ever.
                self._resources.pop_all()
            self._resources.close()

    def _supervisor(self, models: Models) -> Supervisor:
        config, stop = self._config, self._stop
        transport = ZmqTransport(address=config.bus_address, stack=config.bus_stack)
        self._resources.callback(transport.close)
        state = LoopState(fallback=models.reason)
        fallback = None if models.fallback is None else models.fallback.program
        parts = ServiceParts(models.first.program, transport, fallback, state)
        start = KINDS[models.first.kind].start
        road = _RoadState(transport)
        return Supervisor(
            lambda: start(config, parts, stop.event, self._resources),
            state,
            stop,
            self._notifier,
            run_timeout_s=config.run_timeout_ms / 1000,
            reports=(_MarkerKeeper(self._marker, state), road),
            is_on_road=lambda: road.started,
        )


class _MarkerKeeper:
    """Remembers a fallback once it has happened."""

    def __init__(self, marker: FallbackMarker, state: LoopState) -> None:
        self._marker = marker
        self._state = state
        self._written = ""

    def __call__(self, _now_ns: int) -> None:
        reason = self._state.fallback
        if reason and reason != self._written:
            self._written = reason
            self._marker.write(reason)


class _RoadState:
    """Whether the car says that it is on the road, by `deviceState`; False when it says nothing."""

    def __init__(self, transport: Transport) -> None:
        self.started = False
        self._subscriber: Subscriber = transport.subscriber("deviceState", conflate=True)
        self._heard_ns = 0

    def __call__(self, now_ns: int) -> None:
        data = self._subscriber.receive(0)
        if data is not None:
            try:
                with reading("deviceState"):
                    self.started = bool(content(read_event(data)).started)
                self._heard_ns = now_ns
            except MessageError:
                # The loop counts and tells what is damaged on the bus.
                return
        elif now_ns - self._heard_ns > _STALE_NS:
            self.started = False
