"""The process of ``modeld run``: signals, the artifact, and the loop that its kind asks for.

A driving artifact is run by ``modeld.daemon``, one of driver monitoring by ``modeld.monitoring``.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

import runtime
from cereal.errors import CerealError
from modeld import daemon, monitoring
from modeld.config import Config
from modeld.driving_model import check_interface
from modeld.errors import ConfigError, InternalError, ModeldError, ModelInterfaceError
from modeld.startup import StopRequested, StopSignals
from runtime.errors import RuntimeFault

logger = logging.getLogger(__name__)


class Loop(Protocol):
    """What runs until it is told to stop."""

    def run_forever(self, stop: threading.Event) -> None:
        """Iterate until ``stop`` is set."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How artifacts of one kind are run.

    Attributes:
        check: Refuses metadata that the loop cannot use; raises ModelInterfaceError.
        start: Opens bus and cameras, registers them to be closed, and waits for what the loop
            needs; None when stopped.
    """

    check: Callable[[Mapping[str, Any]], object]
    start: Callable[[Config, runtime.Program, threading.Event, ExitStack], Loop | None]


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
    if config.model is None:
        raise ConfigError("model: expected the path of a driving artifact, got none; use --model")
    with StopSignals() as stop, ExitStack() as resources:
        try:
            # Loading and waiting may take long and call into C, so signals interrupt them by an
            # exception.
            with stop.interrupting():
                loop = _start(config, stop.event, resources)
            if loop is not None:
                logger.info("running")
                loop.run_forever(stop.event)
        except StopRequested:
            logger.info("stopped while starting")
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
        logger.info("stopping")
    return stop.exit_code


def _start(config: Config, stop: threading.Event, resources: ExitStack) -> Loop | None:
    """Load the artifact, then what its kind needs (see ADR 0026); None when stopped."""
    assert config.model is not None
    logger.info("loading %s", config.model)
    start_ns = time.perf_counter_ns()
    artifact = runtime.read_artifact(config.model)
    kind = KINDS.get(artifact.manifest.kind)
    if kind is None:
        raise ModelInterfaceError(
            f"{config.model}: expected an artifact of kind {' or '.join(KINDS)}, got "
            f"{artifact.manifest.kind!r}; compile the model without --plain"
        )
    # Before its kernels are built and cameras are waited for, which may never come.
    try:
        kind.check(artifact.manifest.metadata)
    except ModelInterfaceError as error:
        # The path is told here: the check knows metadata, but no file.
        raise ModelInterfaceError(f"{config.model}: {error}") from error
    program = runtime.load_program(artifact, config.device)
    # Resources are closed in reverse: cameras and bus before the program that uses their frames.
    resources.callback(program.close)
    logger.info("loaded %s in %.2f s", config.model, (time.perf_counter_ns() - start_ns) * 1e-9)
    return kind.start(config, program, stop, resources)
