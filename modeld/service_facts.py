"""What the health message says of a loaded model and of the process: gathered once."""

from importlib import metadata

from modeld.health_snapshot import RealtimeEffect, ServiceFacts
from modeld.load_models import LoadedModel
from modeld.realtime import Effect


def facts_of(model: LoadedModel, effects: tuple[Effect, ...], started_ns: int) -> ServiceFacts:
    """Return what does not change while a model is in use.

    Args:
        model: In use.
        effects: What was asked of the system.
        started_ns: When the process began, ns of the monotonic clock.
    """
    info = model.program.device
    return ServiceFacts(
        kind=model.kind,
        model=model.artifact.manifest.name,
        sha256=model.artifact.sha256,
        checkpoints={source.role: source.checkpoint for source in model.artifact.manifest.models},
        device=info.name,
        driver=info.driver,
        self_test=model.self_test,
        realtime=tuple(
            RealtimeEffect(e.name, e.wanted, e.wanted if e.effective else "", e.effective, e.reason)
            for e in effects
        ),
        versions={"modeld": _version("modeld"), "numpy": _version("numpy")},
        started_ns=started_ns,
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
