"""The process of ``modeld run``: handles signals, loads the models and runs their loop.

The kind of the artifact, the file with the compiled model, selects the loop: ``modeld.daemon`` for
driving, ``modeld.monitoring`` for driver monitoring. The loop runs in its own thread; the main
thread supervises it (``modeld.supervisor``). `run` is the entry point.
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

# Variables of openpilot's test harness, see `cereal.lock_step`.
FAKE_VARIABLE: Final = "CEREAL_FAKE"
FAKE_PREFIX_VARIABLE: Final = "CEREAL_FAKE_PREFIX"
# Time limit for building the kernels of one program. PoCL needs seconds. The limit is generous,
# because it only has to detect a compiler that hangs.
BUILD_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Kind:
    """The functions that run artifacts of one kind."""

    model: ModelKind
    # Opens the cameras, waits for the inputs that the loop needs, and returns the loop, or None
    # when stopped. Everything that is opened is registered to be closed.
    start: Callable[[Config, ServiceParts, threading.Event, ExitStack], Loop | None]
    streams: tuple[str, ...]  # camera streams that `start` opens


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
        read_again: Reads the settings as a new process would; raises ConfigError. None if they
            cannot change.

    Returns:
        Exit code: 0 after SIGTERM, 130 after SIGINT.

    Raises:
        ModeldError: Start-up or the loop failed; likewise ``RuntimeFault`` and ``CerealError``.
            Each message is one line for the user, and each class has an ``exit_code``.
    """
    # All threads inherit this, so block the wake-up signal of message rings before the first thread
    # starts. Otherwise a message would kill a thread.
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
            # Not before a restart: the service manager kills a process that does not end.
            goes_on = ending is Ending.RELOAD and not stop.signalled
            if not goes_on:
                notifier.stopping()
        logger.info("restarting" if goes_on else "stopping")
    if goes_on:
        # A signal may have arrived in the meantime.
        if not stop.signalled:
            _restart(notifier)
        exit_code = stop.exit_code
    notifier.close()
    if service.left_behind:
        # Python's own shutdown could wait forever for the driver.
        os._exit(exit_code)
    return exit_code


def _restart(notifier: Notifier) -> NoReturn:
    """Restart the program in this process (execve), with the same process id.

    If that fails, raises ModeldError; the service manager then restarts the process.
    """
    # SIGHUP would kill the new program before it installs its handler. An ignored signal stays
    # ignored until then.
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
    """One run of the process, from its start or restart to its end or the next restart.

    `left_behind` means the same as in `Supervisor`.
    """

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
        """Load the models, run the loop and close all resources; raise as the function `run`."""
        try:
            return self._run()
        except StopRequested:
            logger.info("stopped while starting")
            return Ending.STOPPED
        # These have a message for the user and an exit code.
        except (ModeldError, RuntimeFault, CerealError):
            raise
        except Exception as error:
            logger.exception("unexpected error")
            # An exception can have no text or several lines; the message needs exactly one.
            reason = (str(error).splitlines() or [""])[0]
            raise InternalError(
                f"daemon: unexpected {type(error).__name__}: {reason}; this is a defect, please "
                "report it with the log"
            ) from error
        finally:
            if self.left_behind:
                # The abandoned thread holds the device, so closing it would block forever.
                self._resources.pop_all()
            self._resources.close()

    def _run(self) -> Ending:
        # Loading spends seconds in calls that do not check for a stop. Signals therefore raise an
        # exception there.
        with self._stop.interrupting():
            loader = Loader(
                self._config,
                {name: kind.model for name, kind in KINDS.items()},
                self._resources,
                self._before_build,
                self._before_load,
                self._claim_service,
            )
            with self._memory.loading() as unfinished:
                before = Before(self._memory.fallback.read(), self._memory.model.read(), unfinished)
                models = load_models(loader, before)
        self._problems = models.problems
        # The compiler in PoCL catches SIGABRT and continues, but the watchdog uses it to end this
        # process.
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
        # A reload happens only when the car is parked, which ends the drive.
        if ending is Ending.RELOAD:
            self._memory.end_drive()
        return ending

    def _claim_service(self, kind: str) -> None:
        """Open the bus and claim the daemon's health service on it.

        If another daemon of this kind is running, this raises CerealError before the slow part of
        loading.
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

    def _before_load(self, path: Path) -> None:
        """Save and report the artifact being loaded, because loading can take long or hang."""
        self._memory.load(path)
        self._loading = f"loading {path}"
        self._notifier.status(self._loading)

    def _before_build(self) -> None:
        self._notifier.extend_start(BUILD_S)
        self._notifier.status(f"{self._loading}: building kernels")

    def _supervisor(self, models: Models) -> Supervisor:
        config, stop = self._config, self._stop
        assert self._place is not None  # a model was loaded
        transport, claim = self._place
        # The reporter claims the service next. It is created only now, because its thread inherits
        # the real-time settings of the process.
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
        """Return the problems of the current settings, "" for none.

        A new process would end because of them, so there is no reload then.
        """
        try:
            self._read_again()
        except ModeldError as error:
            return str(error)
        return ""

    def _enter_thread(self) -> None:
        """Apply the real-time settings of the loop's thread; log the effect of all settings."""
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
        """Return the function that publishes the health of the model in use."""
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
        reported = (models.first, self._effects, state.problems)

        def report(now_ns: int) -> None:
            nonlocal reported
            in_use = models.first
            if state.fallback and models.fallback is not None:
                in_use = models.fallback
            found = (in_use, self._effects, state.problems)
            if reported != found:
                reported = found
                reporter.facts = self._facts(in_use, state)
            reporter.report(now_ns, self._log.lost)

        return report
