"""Things that tests build once for a whole run: example models, artifacts, rendered drives.

    example_models("vision", "policy")      {"vision": .../vision.onnx, "policy": ...}
    interface_models("split-2025")          its small models, in the order of a frame
    example_artifact("split-2025")          those compiled as a driving program

Whoever asks first makes it, the other workers wait and read it. What is returned belongs to all
tests: it is read, and copied before it is changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from tests.session_cache import SESSION

if TYPE_CHECKING:
    from scheduler.compile import CompileOptions


def built(what: str, make: Callable[[Path], object], *parts: object) -> Path:
    """Return a directory that `make` fills, once in a run of the tests.

    Args:
        what: names it in the directory of the run; equal names and parts are the same thing.
        make: fills an empty directory. If it raises, the next test that asks tries again.
        parts: whatever else the content depends on, told apart by `repr`.
    """
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
    target = SESSION.root / "built" / f"{what}-{digest}"
    if target.is_dir():
        return target
    target.parent.mkdir(exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            unfinished = target.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(target)
    return target


def example_models(*names: str, seed: int = 0) -> dict[str, Path]:
    """Return ONNX files of example models and of those for benchmarks, by name."""
    from tools.example_models import write_models

    def one(name: str) -> Path:
        place = built("model", lambda to: write_models(to, (name,), seed), name, seed)
        return place / f"{name}.onnx"

    return {name: one(name) for name in names}


def interface_models(interface: str, seed: int = 0) -> list[Path]:
    """Return the ONNX files of a revision's small models, in the order they run in a frame."""
    from scheduler.driving.revisions import load_monitoring, load_revisions
    from tools.example_models import write_interface

    place = built("interface", lambda to: write_interface(to, interface, seed), interface, seed)
    if interface in load_monitoring():
        return [place / "dmonitoring.onnx"]
    return [place / f"{model.role}.onnx" for model in load_revisions()[interface].models]


def example_artifact(interface: str, **options: Unpack[CompileOptions]) -> Path:
    """Return a revision's small models compiled, with the options of `compile_driving`."""
    from scheduler.compile import compile_driving, compile_monitoring
    from scheduler.driving.revisions import load_monitoring

    def make(to: Path) -> None:
        models = interface_models(interface)
        if interface in load_monitoring():
            compiled = compile_monitoring(models[0], interface=interface, **options)
        else:
            compiled = compile_driving(models, interface=interface, **options)
        compiled.write(to / "model.pkl")

    return built("artifact", make, interface, sorted(options.items())) / "model.pkl"
