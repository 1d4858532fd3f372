"""What `make adreno` compiles, for row `adreno`, with its heuristics alone: the same everywhere."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from scheduler.compile import compile_driving
from scheduler.context import CompileContext
from scheduler.device.spec import SPECS
from scheduler.flags import Flags
from tests.drivers.cases import CASES, Feed
from tests.scheduler.support.programs import emitted
from tools.example_models.driving import build_policy, build_vision

ROOT: Final = Path(__file__).parents[2]
Manifest = Mapping[str, Any]
ROW: Final = SPECS["adreno"]


def trained(precision: str) -> dict[str, Manifest]:
    """Return the driving model that comes with the project."""
    models = [ROOT / f"tools/models/{role}.onnx" for role in ("vision", "policy")]
    return {"": _driving(models, precision)}


def examples(precision: str) -> dict[str, Manifest]:
    """Return the example driving models, whose weights are random."""
    with tempfile.TemporaryDirectory(prefix="adreno-") as folder:
        models = []
        for role, make in (("vision", build_vision), ("policy", build_policy)):
            models.append(Path(folder, f"{role}.onnx"))
            models[-1].write_bytes(make(0)[0].SerializeToString(deterministic=True))
        return {"": _driving(models, precision)}


def cases(_: str) -> dict[str, Manifest]:
    """Return the programs of the drivers' suite, by name."""
    found: dict[str, Manifest] = {}
    for name, case in CASES.items():
        context = CompileContext(ROW, precision="fp16" if name == "halves" else "fp32")
        found[name] = emitted(case(Feed()), context=context).manifest
    return found


# Name of the golden figures -> what is compiled, and in which precision.
WORKLOADS: Final[Mapping[str, tuple[Callable[[str], dict[str, Manifest]], str]]] = {
    "trained-fp32": (trained, "fp32"),
    "trained-fp16": (trained, "fp16"),
    "examples-fp32": (examples, "fp32"),
    "examples-fp16": (examples, "fp16"),
    "drivers": (cases, "both"),
}


def compiled(name: str) -> dict[str, Manifest]:
    make, precision = WORKLOADS[name]
    return make(precision)


def _driving(models: list[Path], precision: str) -> Manifest:
    flags = Flags(tuned=False, schedule_cache=False)
    compiled_ = compile_driving(models, target=ROW, precision=precision, flags=flags)
    manifest = compiled_.manifest
    return {key: manifest[key] for key in ("target", "programs", "kernels", "entries")}
