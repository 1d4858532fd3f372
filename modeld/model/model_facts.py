"""Facts of a loaded model for the health message."""

import platform
from collections.abc import Mapping
from importlib import metadata
from types import MappingProxyType
from typing import Final

import numpy as np
import pyopencl

from modeld.health.snapshot import ServiceFacts
from modeld.model.load_models import LoadedModel
from modeld.service.realtime import Effect
from runtime.format.driving_interface import parse_interface
from runtime.format.monitoring_interface import parse_monitoring_interface

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
    """Return the versions of what the daemon consists of; ours first."""
    try:
        own = metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        own = "(not installed)"
    return MappingProxyType(
        {
            _PACKAGE: own,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "pyopencl": pyopencl.VERSION_TEXT,
        }
    )
