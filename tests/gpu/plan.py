"""What a run does, in which order, and how its time is shared."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.commands.make_model import BENCHMARKS, MODELS

# Seconds of all of it, and at which share of them each stage is cut; what is left goes to the next.
SECONDS: Final = 430.0
SHARES: Final = {
    "doctor": 0.15,
    "compile": 0.50,
    "measure": 0.72,
    "tune": 0.92,
    "peers": 1.0,
}
PRECISIONS: Final = ("fp32", "fp16")
# The whole driving program, driver monitoring, and the driving model that was trained.
DRIVING: Final = "driving"
MONITORING: Final = "dmonitoring"
MONITORING_INTERFACE: Final = "dmonitoring-2025"
TRAINED: Final = "trained"
TUNED: Final = ("vision", "policy")
# Of a search, at most; a model's.
TUNE_S: Final = 45.0
# To compile an artifact with its binaries, and to load, test and time it: what takes longer hangs.
COMPILE_S: Final = 180.0
ARTIFACT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """One artifact."""

    name: str
    precision: str
    models: tuple[Path, ...]
    plain: bool

    @property
    def title(self) -> str:
        return f"{self.name} {self.precision}"

    def artifact(self, directory: Path) -> Path:
        """Return where it is put."""
        return directory / f"{self.name}.{self.precision}.pkl"

    def arguments(self, directory: Path, target: str, device: str | None) -> list[str]:
        given = ["compile", *map(str, self.models), "-o", str(self.artifact(directory))]
        given += ["--precision", self.precision, "--target", target]
        given += ["--device", device] if device else []
        return [*given, *(["--plain"] if self.plain else [])]


def jobs(models: Path, trained: Path | None) -> list[Job]:
    """Return all artifacts: those of the daemon first, small ones before large ones.

    Args:
        models: directory of the example models.
        trained: directory of the trained model; None where it is not there.
    """
    pair = tuple(models / f"{name}.onnx" for name in MODELS)
    vision, policy = ((name, (models / f"{name}.onnx",), True) for name in MODELS)
    found: list[tuple[str, tuple[Path, ...], bool]] = [policy]
    if trained is not None:
        found.append((TRAINED, tuple(trained / f"{n}.onnx" for n in MODELS), False))
    found += [vision, (MONITORING, (models / f"{MONITORING}.onnx",), False), (DRIVING, pair, False)]
    found += [(name, (models / f"{name}.onnx",), True) for name in BENCHMARKS]
    return [Job(n, precision, m, plain) for n, m, plain in found for precision in PRECISIONS]
