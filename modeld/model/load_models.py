"""Loads the models of the process: the configured model and the fallback model.

Each is an artifact, a file with a compiled model. The fallback model takes over when the configured
one fails. If the configured model cannot be loaded or fails its self-test, the process starts with
the fallback model (ADR 0086).
"""

import logging
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

import runtime
from modeld.errors import (
    ConfigError,
    ModeldError,
    ModelInterfaceError,
    NothingSelectedError,
    StoreError,
)
from modeld.health.snapshot import SelfTestFacts, ServiceFacts, TestResult
from modeld.service.config import Config
from modeld.service.realtime import Effect
from modeld.store.model_store import ModelStore
from runtime.errors import RuntimeFault
from runtime.format.interfaces import parse_interface, parse_monitoring_interface
from runtime.opencl.binding import cl
from runtime.run.selftest import self_test

logger = logging.getLogger(__name__)

# Runs of the self-test at start, which cost three frames. `modeld selftest` does all its runs.
SELF_TEST_RUNS: Final = 3
_UNFINISHED: Final = "the last start did not finish loading the model"


@dataclass(frozen=True, slots=True)
class ModelKind:
    """The checks for artifacts of one kind. Both functions raise ModelInterfaceError."""

    check: Callable[[Mapping[str, Any]], object]  # checks that the loop can use the metadata
    # Runs a program once the way the loop does, and checks its outputs. The first run is slow.
    try_out: Callable[[runtime.Program], object]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A program that has passed its self-test.

    The artifact itself is not kept, so its memory is released.
    """

    path: Path  # path of the artifact
    sha256: str  # digest of the artifact, hexadecimal
    program: runtime.Program  # the program, with its state at reset
    self_test: SelfTestFacts
    program_sha256: str = ""  # digest of the artifact's program, hexadecimal

    @property
    def kind(self) -> str:
        """Kind of the artifact, "driving" or "monitoring"."""
        return self.program.manifest.kind


@dataclass(frozen=True, slots=True)
class Models:
    """The models of the process."""

    first: LoadedModel  # the model to start with
    fallback: LoadedModel | None  # the fallback model; None if there is none or it is `first`
    reason: str  # why `first` is the fallback model; "" if it is the configured one
    problems: tuple[str, ...] = ()  # one line for each unusable model
    is_remembered: bool = False  # `first` was chosen only because the current drive uses it


@dataclass(frozen=True, slots=True)
class Loader:
    """Loads artifacts."""

    config: Config
    kinds: Mapping[str, ModelKind]  # admissible kinds, by name
    resources: ExitStack  # closes the programs
    # Called before each compilation, which takes seconds.
    on_build: Callable[[], None] = lambda: None
    # Called with each artifact's path before it is loaded, because loading can hang the process.
    on_load: Callable[[Path], None] = lambda _path: None
    # Called with the artifact's kind once it is checked, before the slow part of loading. It may
    # raise, for example if another process already publishes the services of this kind.
    on_kind: Callable[[str], None] = lambda _kind: None

    def load(self, path: Path) -> LoadedModel:
        """Load an artifact and test it.

        Raises:
            ModelInterfaceError: The daemon cannot run this artifact.
            RuntimeFault: It is damaged, its kernels do not build, or it fails its self-test.
        """
        logger.info("loading %s", path)
        self.on_load(path)
        start_ns = time.perf_counter_ns()
        artifact = runtime.read_artifact(path)
        kind = self.kinds.get(artifact.manifest.kind)
        if kind is None:
            raise ModelInterfaceError(
                f"{path}: expected an artifact of kind {' or '.join(self.kinds)}, got "
                f"{artifact.manifest.kind!r}; compile the model without --plain"
            )
        # Check before building kernels and waiting for cameras, which can take long.
        try:
            kind.check(artifact.manifest.metadata)
        except ModelInterfaceError as error:
            # Add the path, which the check does not know.
            raise ModelInterfaceError(f"{path}: {error}") from error
        self.on_kind(artifact.manifest.kind)
        program = runtime.load_program(
            artifact,
            self.config.device,
            priority=self.config.realtime.gpu_priority,
            on_build=self.on_build,
        )
        try:
            report = self_test(program, limit=SELF_TEST_RUNS)
            kind.try_out(program)
        except (ModeldError, RuntimeFault):
            # Release the memory for the model that may replace this one.
            program.close()
            raise
        self.resources.callback(program.close)
        elapsed_s = (time.perf_counter_ns() - start_ns) * 1e-9
        logger.info("loaded %s in %.2f s; %s", path, elapsed_s, report)
        result = TestResult.PASSED if report.runs else TestResult.NOT_DONE
        facts = SelfTestFacts(result, report.duration_ms, str(report))
        return LoadedModel(path, artifact.sha256, program, facts, artifact.program_sha256)


@dataclass(frozen=True, slots=True)
class Before:
    """State saved by earlier processes; "" means nothing was saved."""

    fallback: str = ""  # why this drive uses the fallback model
    model: str = ""  # path of the artifact with which this drive began
    unfinished: str = ""  # path of the artifact that the last start did not finish loading


def load_models(loader: Loader, before: Before) -> Models:
    """Load the configured model and the fallback model.

    If neither can be used, raises the ModeldError or RuntimeFault of the configured one.
    """
    problems: list[str] = []
    safe_path, reason = _fallback_of(loader.config, before, problems)
    if not reason or safe_path is None:
        return _load_both(loader, before, safe_path, problems)
    logger.warning("this drive continues with the fallback model: %s", reason)
    try:
        return _fallback_only(_load_fallback(loader, safe_path), before, reason, problems)
    except (ModeldError, RuntimeFault) as error:
        _log_problem(problems, "fallback model not usable, trying the configured one", error)
    # The fallback is unusable: try the configured model, although it failed earlier.
    models = _load_both(loader, before, None, problems)
    try:
        # The device accepts models now. It may have been unavailable before, so try the fallback
        # model a second time.
        safe = _load_fallback(loader, safe_path, models.first.kind)
    except (ModeldError, RuntimeFault) as error:
        logger.error("fallback model not usable, continuing without one: %s", error)  # noqa: TRY400 -- the text says all
        return models
    models.first.program.close()
    return _fallback_only(safe, before, reason, problems)


def _fallback_of(config: Config, before: Before, problems: list[str]) -> tuple[Path | None, str]:
    """Return the fallback model's artifact, or None, and why to start with it, or ""."""
    path = _fallback_path(config, problems)
    if before.unfinished and before.unfinished == str(path):
        # Loading it may hang the device again, and the process would never start.
        problem = f"fallback model not usable: {_UNFINISHED}; continuing without one"
        logger.error("%s", problem)
        problems.append(problem)
        return None, before.fallback
    return path, before.fallback or (_UNFINISHED if before.unfinished else "")


def _load_both(
    loader: Loader, before: Before, fallback_path: Path | None, problems: list[str]
) -> Models:
    """Load the configured model and the fallback model, or only the latter if the first fails."""
    try:
        paths = _model_paths(loader.config, problems)
        kept = _kept_path(loader.config, before.model)
        tried = paths if kept is None else [kept, *(path for path in paths if path != kept)]
        tried = _finished(tried, before.unfinished, problems)
        # The store has already checked its selected model, paths[0], against the manifest.
        first = _first_of(tried, loader, problems, checked=paths[0])
    except (ModeldError, RuntimeFault) as error:
        if fallback_path is None:
            raise
        _log_problem(problems, "model not usable, using the fallback model", error)
        try:
            return Models(_load_fallback(loader, fallback_path), None, str(error), tuple(problems))
        except (ModeldError, RuntimeFault) as second:
            _log_problem(problems, "fallback model not usable either", second)
            raise error from second
    fallback = None
    if fallback_path is not None:
        try:
            fallback = _load_fallback(loader, fallback_path, first.kind)
        except (ModeldError, RuntimeFault) as error:
            # Driving without a fallback model is better than not driving.
            _log_problem(problems, "fallback model not usable, continuing without one", error)
    continues = first.path == kept != paths[0]
    return Models(first, fallback, "", tuple(problems), is_remembered=continues)


def _fallback_only(safe: LoadedModel, before: Before, reason: str, problems: list[str]) -> Models:
    """Return the fallback model as the only model of the process."""
    return Models(safe, None, reason, tuple(problems), is_remembered=bool(before.fallback))


def _log_problem(problems: list[str], what: str, error: Exception) -> None:
    """Log that a model cannot be used; add it to `problems` for the health message."""
    logger.error("%s: %s", what, error)
    problems.append(f"{what}: {error}")


def _load_fallback(loader: Loader, path: Path, kind: str = "driving") -> LoadedModel:
    """Load the fallback model, which must have the kind of the model that it replaces."""
    fallback = loader.load(path)
    if fallback.kind != kind:
        raise ModelInterfaceError(
            f"{path}: expected an artifact of kind {kind!r}, as the model that it stands in for, "
            f"got {fallback.kind!r}; choose another fallback_model"
        )
    return fallback


def _model_paths(config: Config, problems: list[str]) -> Sequence[Path]:
    """Return the artifacts to try, in order; raise ConfigError or StoreError if there is none."""
    if config.model is not None:
        return (config.model,)
    if config.models_dir is not None:
        paths, found = ModelStore(config.models_dir).candidates(config.role)
        problems += [f"model of the store not usable: {text}" for text in found]
        return paths
    raise ConfigError(
        "model: expected the path of an artifact, or a store with a selected one, got neither; use "
        "--model, or models_dir in the configuration"
    )


def _kept_path(config: Config, kept: str) -> Path | None:
    """Return the path of the drive's first model if it is from the store and still exists."""
    if not kept or config.model is not None or config.models_dir is None:
        return None
    path = Path(kept)
    return path if path.is_relative_to(config.models_dir) and path.is_file() else None


def _finished(paths: Sequence[Path], unfinished: str, problems: list[str]) -> Sequence[Path]:
    """Return `paths` without the artifact that the last start did not finish loading.

    If there is no other, it is kept.
    """
    left = [path for path in paths if str(path) != unfinished]
    if not left or len(left) == len(paths):
        # Loading may succeed this time, and there is no alternative.
        return paths
    problem = f"model not usable, using the previous one: {unfinished}: {_UNFINISHED}"
    logger.error("%s", problem)
    problems.append(problem)
    return left


def _fallback_path(config: Config, problems: list[str]) -> Path | None:
    """Return the fallback model's path: the configured one, else the store's selection."""
    if config.fallback_model is not None:
        return config.fallback_model
    if config.model is not None or config.models_dir is None or config.role != "driving":
        return None
    try:
        paths, found = ModelStore(config.models_dir).candidates("fallback")
        problems += [f"fallback model of the store not usable: {text}" for text in found]
        return paths[0]
    except NothingSelectedError:
        return None
    except StoreError as error:
        _log_problem(problems, "fallback model not usable, continuing without one", error)
        return None


def _first_of(
    paths: Sequence[Path], loader: Loader, problems: list[str], checked: Path
) -> LoadedModel:
    """Load the first usable artifact of `paths`; `checked` is one that the store has checked."""

    def load(path: Path) -> LoadedModel:
        models_dir = loader.config.models_dir
        if path != checked and models_dir is not None:
            ModelStore(models_dir).check(path, loader.config.role)
        return loader.load(path)

    for path in paths[:-1]:
        try:
            return load(path)
        except (ModeldError, RuntimeFault) as error:
            _log_problem(problems, "model not usable, using the previous one", error)
    return load(paths[-1])


# --- Facts of a loaded model, for the health message ------------------------------------------

_PACKAGE: Final = "modeld"


def facts_of(
    model: LoadedModel,
    *,
    realtime: tuple[Effect, ...] = (),
    start_problems: tuple[str, ...] = (),
    started_ns: int = 0,
) -> ServiceFacts:
    """Return the facts of a model whose artifact has been checked."""
    stats = model.program.stats
    return ServiceFacts(
        kind=model.kind,
        model=str(model.path),
        sha256=model.sha256,
        program_sha256=model.program_sha256,
        lineage=model.program.manifest.lineage,
        checkpoints=_checkpoints(model),
        device=stats.device,
        driver=stats.driver,
        self_test=model.self_test,
        realtime=realtime,
        start_problems=start_problems,
        versions=versions(),
        started_ns=started_ns,
    )


def _checkpoints(model: LoadedModel) -> Mapping[str, str]:
    """Return the name of each model's checkpoint, by role."""
    interface = model.program.manifest.metadata["interface"]
    if model.kind == "monitoring":
        part = parse_monitoring_interface(interface).model
        return {part.role: part.checkpoint}
    return {one.role: one.checkpoint for one in parse_interface(interface).models}


def versions() -> Mapping[str, str]:
    """Return the versions of the daemon and its main dependencies, by name; the daemon first."""
    try:
        own = metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        own = "(not installed)"
    return MappingProxyType(
        {
            _PACKAGE: own,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "pyopencl": cl.VERSION_TEXT,
        }
    )
