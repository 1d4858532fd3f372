"""The examples of all revisions of driving models, compiled once in a run, passes verified."""

from pathlib import Path

from scheduler.check.vectors import with_self_test
from scheduler.compile import compile_driving
from tests.scheduler.support.verified import verified_passes
from tests.support.built import built, interface_models


def models_of(name: str) -> dict[str, Path]:
    """Return the ONNX files of a revision by role, in the order they run."""
    return {path.stem: path for path in interface_models(name)}


def revision_artifact(name: str) -> Path:
    """Return a revision as a program that carries its self-test.

    The models are given last one first: the compiler tells the roles, and the revision, itself.
    """

    def make(to: Path) -> None:
        with verified_passes():
            compiled = compile_driving(interface_models(name)[::-1])
        with_self_test(compiled, keep=False).write(to / "driving.pkl")

    return built("revision", make, name) / "driving.pkl"
