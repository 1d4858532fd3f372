"""The process of ``modeld run``: signals, the models, and the loop of their kind.

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
from pathlib import Path
from types import MappingProxyType
from typing import Final, NoReturn

from cereal.cameras import open_cameras
from cereal.clock import MonotonicClock
from cereal.errors import CerealError
from cereal.lock_step import gates_of
from cereal.msgq import wake
from cereal.pubsub import PubMaster
from cereal.transport import Transport
from cereal.transport.msgq import Gates
from modeld import daemon, monitoring
from modeld.bus import open_bus
from modeld.errors import InternalError, ModeldError
from modeld.health.metrics import MetricsFile
from modeld.health.reporter import HEALTH_SERVICES, HealthReporter
from modeld.health.side_reports import CameraReport, DriveKeeper, RoadState
from modeld.health.snapshot import ServiceFacts
from modeld.model.driving_model import check_interface, try_driving
from modeld.model.load_models import (
    Before,
    LoadedModel,
    Loader,
    ModelKind,
    Models,
    facts_of,
    load_models,
)
from modeld.service.config import Config
from modeld.service.config_sources import changed_settings
from modeld.service.notify import Notifier
from modeld.service.realtime import (
    Effect,
    apply_to_loop,
    apply_to_process,
    apply_to_program,
    awake,
    newest,
)
from modeld.service.service_log import ServiceLog
from modeld.startup import (
    DRIVER_STREAM,
    ROAD_STREAM,
    WIDE_STREAM,
    ServiceParts,
    StopRequested,
    StopSignals,
    check_open_files,
)
from modeld.state.drive_memory import DriveMemory, state_directory
from modeld.state.loop_state import LoopState
from modeld.supervisor import Ending, Loop, Supervisor
from runtime.errors import RuntimeFault

logger = logging.getLogger(__name__)

# Of openpilot's harness, see `cereal.lock_step`.
FAKE_VARIABLE: Final = "CEREAL_FAKE"
FAKE_PREFIX_VARIABLE: Final = "CEREAL_FAKE_PREFIX"
# For one program of kernels, from one `extend_start` to the next. PoCL takes seconds; slower ones
# and processors have room, as only a compiler that hangs is to be found by it.
BUILD_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Kind:
    """How artifacts of one kind are run.

    `start` opens cameras, registers them to be closed, and waits for what the loop needs; None when
    stopped. `streams` are those of the cameras that it opens.
    """

    model: ModelKind
    start: Callable[[Config, ServiceParts, threading.Event, ExitStack], Loop | None]
    streams: tuple[str, ...]


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "driving": Kind(
            ModelKind(check_interface, try_driving), daemon.start, (ROAD_STREAM, WIDE_STREAM)
        ),
        "monitoring": Kind(
            ModelKind(monitoring.check_monitoring, monitoring.try_monitoring),
            monitoring.start,
            (DRIVER_STREAM,),
        ),
    }
)


def run(config: Config, read_again: Callable[[], Config] | None = None) -> int:
    """Run the loop of the artifact's kind until SIGTERM or SIGINT.

    Args:
        config: Settings; ``model`` is required.
        read_again: Reads the settings as a new process would; raises ConfigError. None: they cannot
            have changed.

    Returns:
        Exit code: 0 after SIGTERM, 130 after SIGINT.

    Raises:
        ModeldError: Start-up or the loop failed; likewise ``RuntimeFault`` and ``CerealError``.
            Each message is one line for the user and each class has an ``exit_code``.
    """
    # Before any thread is made: all inherit it, and none is ended by a message on a ring.
    wake.block()
    notifier = Notifier.from_environment(os.environ)
    with (
        ServiceLog(
            format=config.log_format, level=config.log_level, tracebacks=config.log_tracebacks
        ) as log,
        StopSignals() as stop,
    ):
        logger.info("settings: %s", changed_settings(config) or "all as by default")
        check_open_files()
        service = _Service(config, stop, notifier, log, read_again or (lambda: config))
        exit_code = 0
        ending = Ending.STOPPED
        try:
            ending = service.run()
            exit_code = stop.exit_code
        except (ModeldError, RuntimeFault, CerealError) as error:
            if not service.left_behind:
                raise
            logger.error("%s", error)  # noqa: TRY400 -- the message is for a user
            exit_code = error.exit_code
        finally:
            # A service manager that hears of an end kills a process that goes on.
            goes_on = ending is Ending.RELOAD and not stop.signalled
            if not goes_on:
                notifier.stopping()
        logger.info("restarting" if goes_on else "stopping")
    if goes_on:
        # Asked once more: a signal may have come meanwhile.
        if not stop.signalled:
            _start_anew(notifier)
        exit_code = stop.exit_code
    notifier.close()
    if service.left_behind:
        # Python's own shutdown may wait for a driver for ever.
        os._exit(exit_code)
    return exit_code


def _start_anew(notifier: Notifier) -> NoReturn:
    """Replace this process by one that starts from the beginning, with the same identity.

    If the system refuses it, the service manager restarts the process after ModeldError.
    """
    # An ignored signal stays so until the new process has its handler: it must not be ended by it.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    notifier.reloading(time.monotonic_ns())
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = [sys.executable, *sys.orig_argv[1:]]
    try:
        os.execve(sys.executable, arguments, {**os.environ, **notifier.environment})  # noqa: S606 -- our own command line
    except OSError as error:
        raise ModeldError(
            f"{sys.executable}: cannot be restarted: {error.strerror}; the process ends, start "
            "it again"
        ) from error


class _Service:
    """One life of the process between two starts. `left_behind` is as of `Supervisor`."""

    def __init__(
        self,
        config: Config,
        stop: StopSignals,
        notifier: Notifier,
        log: ServiceLog,
        read_again: Callable[[], Config],
    ) -> None:
        self.left_behind = False
        self._config = config
        self._stop = stop
        self._notifier = notifier
        self._log = log
        self._read_again = read_again
        self._memory = DriveMemory(state_directory(config.state_dir))
        self._resources = ExitStack()
        self._started_ns = time.monotonic_ns()
        self._effects: tuple[Effect, ...] = ()
        self._problems: tuple[str, ...] = ()
        self._loading = ""
        self._gates: Gates | None = None
        self._place: tuple[Transport, PubMaster] | None = None

    def run(self) -> Ending:
        """Load, watch the loop, and close what was opened; raise as `run` of this module."""
        try:
            return self._run()
        except StopRequested:
            logger.info("stopped while starting")
            return Ending.STOPPED
        # These carry a message for the user and an exit code of their own.
        except (ModeldError, RuntimeFault, CerealError):
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
            if self.left_behind:
                # The abandoned thread holds the device: closing it would wait for ever.
                self._resources.pop_all()
            self._resources.close()

    def _run(self) -> Ending:
        # Loading takes seconds inside calls that know no signals, so these interrupt it by an
        # exception.
        with self._stop.interrupting():
            loader = Loader(
                self._config,
                {name: kind.model for name, kind in KINDS.items()},
                self._resources,
                self._tell_build,
                self._tell_load,
                self._take_place,
            )
            with self._memory.loading() as unfinished:
                before = Before(self._memory.fallback.read(), self._memory.model.read(), unfinished)
                models = load_models(loader, before)
        self._problems = models.problems
        # The compiler inside PoCL catches it and goes on, but that is how a watchdog ends us.
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        settings = self._config.realtime
        self._effects = apply_to_process(settings)
        self._effects += apply_to_program(settings, models.first.program)
        self._effects += self._resources.enter_context(awake(wanted=settings.keep_awake))
        supervisor = self._supervisor(models)
        self._notifier.ready()
        try:
            ending = supervisor.run()
        finally:
            self.left_behind = supervisor.left_behind
        # A parked car has ended its drive.
        if ending is Ending.RELOAD:
            self._memory.end_drive()
        return ending

    def _take_place(self, kind: str) -> None:
        """Open the bus and claim the daemon's place on it.

        Another daemon of the kind is a CerealError before seconds go into loading.
        """
        if self._place is not None:
            return
        config, stop = self._config, self._stop
        stack, prefix = config.bus_stack, config.prefix
        if FAKE_VARIABLE in os.environ:
            harness = os.environ.get(FAKE_PREFIX_VARIABLE, "")
            self._gates = gates_of(harness, prefix, is_stopped=stop.event.is_set)
        transport = open_bus(
            config.addresses, stack, prefix=prefix, gates=self._gates, keys=config.bus_keys
        )
        self._resources.callback(transport.close)
        claim = PubMaster((HEALTH_SERVICES[kind],), transport, MonotonicClock())
        self._place = transport, claim

    def _tell_load(self, path: Path) -> None:
        """Remember which artifact is loaded now, and say so: it may take long, or never end."""
        self._memory.load(path)
        self._loading = f"loading {path}"
        self._notifier.status(self._loading)

    def _tell_build(self) -> None:
        self._notifier.extend_start(BUILD_S)
        self._notifier.status(f"{self._loading}: building kernels")

    def _supervisor(self, models: Models) -> Supervisor:
        config, stop = self._config, self._stop
        assert self._place is not None  # a model was loaded
        transport, claim = self._place
        # The reporter takes the place at once; it is made only now because of its thread, which
        # inherits what was asked of the system for this process.
        claim.close()
        cameras = open_cameras(
            config.camera_server, config.bus_stack, prefix=config.prefix, gates=self._gates
        )
        self._resources.callback(cameras.close)
        state = LoopState(fallback=models.reason)
        fallback = None if models.fallback is None else models.fallback.program
        parts = ServiceParts(models.first.program, transport, cameras, fallback, state)
        kind = KINDS[models.first.kind]
        road = RoadState(transport)
        return Supervisor(
            lambda: kind.start(config, parts, stop.event, self._resources),
            state,
            stop,
            self._notifier,
            run_timeout_s=config.run_timeout_ms / 1000,
            reports=(
                road,
                self._health(models, state, transport),
                lambda _now_ns: transport.log_refused(),
                CameraReport(cameras, kind.streams, state),
            ),
            is_on_road=lambda: road.started,
            enter_thread=self._enter_thread,
            each_tick=DriveKeeper(self._memory, state, models.first.path),
            is_remembered=models.is_remembered,
            why_no_reload=self._why_no_reload,
        )

    def _why_no_reload(self) -> str:
        """Return the defects of the settings now: a process that they would end is not started."""
        try:
            self._read_again()
        except ModeldError as error:
            return str(error)
        return ""

    def _enter_thread(self) -> None:
        """Ask for what the loop's thread needs; say what came of all that was asked for."""
        self._effects = newest(self._effects + apply_to_loop(self._config.realtime))
        for effect in self._effects:
            logger.log(logging.INFO if effect.effective else logging.WARNING, "%s", effect)

    def _facts(self, model: LoadedModel, state: LoopState) -> ServiceFacts:
        return facts_of(
            model,
            realtime=self._effects,
            start_problems=self._problems + state.problems,
            started_ns=self._started_ns,
        )

    def _health(
        self, models: Models, state: LoopState, transport: Transport
    ) -> Callable[[int], None]:
        """Return what reports the health of the model in use."""
        path = self._config.metrics_file
        reporter = HealthReporter(
            self._facts(models.first, state),
            state,
            transport,
            MonotonicClock(),
            HEALTH_SERVICES[models.first.kind],
            None if path is None else MetricsFile(path),
        )
        self._resources.callback(reporter.close)
        told = (models.first, self._effects, state.problems)

        def report(now_ns: int) -> None:
            nonlocal told
            in_use = models.first
            if state.fallback and models.fallback is not None:
                in_use = models.fallback
            found = (in_use, self._effects, state.problems)
            if told != found:
                told = found
                reporter.facts = self._facts(in_use, state)
            reporter.report(now_ns, self._log.lost)

        return report
