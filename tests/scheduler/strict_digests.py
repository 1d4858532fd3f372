"""Prints digests of what programs with strict numerics give here: `python -m ...strict_digests`.

    {"functions": {"cpu": "5be..", "cpu-avx2": "5be.."}, ...}      by program and row

Names of programs and rows on the command line; all of them where none is named. What a row compiles
runs on this machine's processor, as PoCL knows it (MODELD_POCL_CPU); rows and processors must give
one digest.
"""

import hashlib
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from runtime.format.artifact import from_memory
from runtime.opencl.device import choose_device
from runtime.opencl.program_cache import shared_cache
from runtime.run.executor import Program
from scheduler.compile import compile_plain
from scheduler.context import STRICT
from scheduler.device.spec import SPECS
from scheduler.onnx_import import OnnxModel, from_proto
from tests.conditions.proofs import network
from tests.scheduler.onnx_import.onnx_models import parsed
from tools.example_models.driving import build_policy, build_vision

ROWS = tuple(name for name, spec in SPECS.items() if spec.exact_steps)
# Floats from all of the range, of both signs, NaN and infinities among them.
STEP = 40_009
_OPERATORS = (
    *("Exp", "Log", "Sin", "Cos", "Tanh", "Erf", "Sqrt", "Reciprocal", "Sigmoid", "Softplus"),
    *("Floor", "Ceil", "Round", "Tan", "Atan", "Asinh", "Mish", "HardSwish"),
)


def _functions() -> onnx.ModelProto:
    size = math.ceil(2**32 / STEP)
    steps = "".join(f"{op.lower()} = {op} (x)\n" for op in _OPERATORS)
    more = "power = Pow (x, p)\nwhole = Cast <to = 6> (x)\nhalf = Cast <to = 10> (x)\n"
    outputs = ", ".join(f"float[{size}] {op.lower()}" for op in _OPERATORS)
    outputs += f", float[{size}] power, int32[{size}] whole, float16[{size}] half"
    return parsed(f"(float[{size}] x, float[{size}] p) => ({outputs}) {{ {steps}{more} }}")


PROGRAMS: dict[str, Callable[[], onnx.ModelProto]] = {
    "functions": _functions,
    "network": network,
    "policy": lambda: build_policy(0)[0],
    "vision": lambda: build_vision(0)[0],
}


def _given(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> NDArray[Any]:
    """Return values of an input: whole numbers divided by others, as no library computes them."""
    drawn = np.random.default_rng(seed).integers(0, 1 << 16, shape)
    if dtype != np.float32:
        return np.asarray(drawn % 256, dtype)
    return np.asarray((drawn - (1 << 15)) / (1 << 14), np.float32)


def digest(model: OnnxModel, row: str) -> str:
    """Return the sha256 of the outputs of two runs."""
    compiled = compile_plain(model, target=SPECS[row], numerics=STRICT)
    device, found = choose_device(None), hashlib.sha256()
    artifact = from_memory(compiled.manifest, compiled.data)
    with Program(artifact, device, shared_cache(device)) as program:
        for turn in range(2):
            given: dict[str, NDArray[Any]] = {
                spec.name: _given(spec.shape, spec.dtype, turn * 100 + i)
                for i, spec in enumerate(program.inputs)
            }
            if set(given) == {"x", "p"}:
                bits = np.arange(0, 2**32, STEP, dtype=np.uint64).astype(np.uint32)
                given["x"] = bits.view(np.float32)
            results = program.run(given)
            for name in sorted(results):
                found.update(results[name].tobytes())
    return found.hexdigest()


def digests(names: list[str], rows: tuple[str, ...] = ROWS) -> dict[str, dict[str, str]]:
    models = {name: from_proto(PROGRAMS[name]()) for name in names}
    return {name: {row: digest(model, row) for row in rows} for name, model in models.items()}


if __name__ == "__main__":
    named = sys.argv[1:]
    programs = [n for n in named if n in PROGRAMS] or list(PROGRAMS)
    found = digests(programs, tuple(n for n in named if n in ROWS) or ROWS)
    print(json.dumps(found))  # noqa: T201  # its output
