"""Compiling A and then B gives the bytes of compiling B alone, whatever of A is still alive."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from runtime.plainpickle import encode
from scheduler.context import CompileContext
from scheduler.device.spec import SPECS
from scheduler.flags import Flags
from scheduler.ir import dtype as dt
from scheduler.ir.origin import Origins
from scheduler.onnx_import import import_model
from scheduler.tensor.eager_plan import make_plan
from scheduler.tensor.tensor import Tensor
from tests.scheduler.onnx_import.onnx_models import model_of, node
from tests.scheduler.support.programs import artifact_of, plan_of

ROOT = Path(__file__).parents[2]
# Outputs of a model by name, and the names of its nodes.
Model = tuple[dict[str, Tensor], Origins]
ZERO, ONE = np.int64(0), np.int64(1)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def imported(name: str, shape: list[int], nodes: list[onnx.NodeProto], **weights: Any) -> Model:
    """Import a model of x and y with each node called NAME/output."""
    for made in nodes:
        made.name = f"/{name}/{made.output[0]}"
    model = import_model(model_of(nodes, [("x", shape)], [("y", None)], weights))
    return model.outputs, model.origins


def conv(name: str) -> Model:
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("GlobalAveragePool", "r", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f v", "y"),
    ]
    return imported(name, [1, 8, 16, 16], nodes, w=floats(16, 8, 3, 3), v=floats(16, 4))


def gelu(name: str) -> Model:
    nodes = [
        node("MatMul", "x w", "m"),
        node("Div", "m root", "d"),
        node("Erf", "d", "e"),
        node("Add", "e one", "a"),
        node("Mul", "m a", "h"),
        node("Mul", "h half", "y"),
    ]
    known = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
    return imported(name, [8, 32], nodes, w=floats(32, 64), **known)


def attention(name: str) -> Model:
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0]),
        node("MatMul", "x t", "s"),
        node("Softmax", "s", "p"),
        node("MatMul", "p x", "m"),
        node("Add", "m x", "y"),
    ]
    return imported(name, [40, 32], nodes)


def heads(name: str) -> Model:
    nodes = [node("MatMul", f"x w{i}", f"m{i}") for i in range(3)]
    nodes += [node("Relu", f"m{i}", f"r{i}") for i in range(3)]
    nodes += [node("Concat", "r0 r1 r2", "y", axis=1)]
    return imported(name, [1, 32], nodes, **{f"w{i}": floats(32, 8) + i for i in range(3)})


def one_hot(name: str) -> Model:
    nodes = [
        node("Cast", "x", "n", to=onnx.TensorProto.INT64),
        node("OneHot", "n depth values", "h"),
        node("Exp", "h", "y"),
    ]
    return imported(name, [5], nodes, depth=np.int64(6), values=np.array([0.25, 2], np.float32))


def cumulated(name: str) -> Model:
    nodes = [
        node("CumSum", "x axis", "c"),
        node("Trilu", "c", "t", upper=0),
        node("LpNormalization", "t", "y"),
    ]
    return imported(name, [12, 12], nodes, axis=ONE)


def layers(name: str) -> Model:
    nodes = [
        node("LayerNormalization", "x g", "n"),
        node("MatMul", "n w", "m"),
        node("Slice", "m from to", "s"),
        node("Exp", "s", "y"),
    ]
    known = {"from": np.array([3]), "to": np.array([9])}
    return imported(name, [16, 24], nodes, g=floats(24), w=floats(24, 24), **known)


# What several models have in common: nodes that are alive as long as this module is.
X, W = Tensor.input("x", (32, 32)), Tensor.weight(floats(32, 32))
I, J = Tensor.input("i", (1,), dt.int32), Tensor.input("j", (1,), dt.int32)  # noqa: E741


def named(name: str, *steps: Tensor) -> Model:
    origins = Origins()
    origins.name([t.node for t in (X, W, I, J)], ())
    for i, step in enumerate(steps):
        origins.name([step.node], (f"/{name}/{i}",))
    return {"y": steps[-1]}, origins


def whole(name: str) -> Model:
    first = (X @ W).relu() / 3.0
    return named(name, first, first.softmax() + X)


def part(name: str) -> Model:
    return named(name, (X @ W).relu() / 3.0)


def cell(name: str) -> Model:
    """An element at two run-time indices, which no loop moves."""
    return named(name, X.gather(I, 0), X.gather(I, 0).gather(J, 1).exp())


def other_cell(name: str) -> Model:
    return named(name, X.gather(J, 1), X.gather(J, 1).gather(I, 0).exp())


def eager(name: str) -> Model:
    """What realizing a tensor compiles: buffers of the process, which go by numbers, are inputs."""
    made = (Tensor(floats(8, 8)) @ Tensor(floats(8, 8)) + Tensor(floats(8))).relu()
    (node,) = make_plan([made.node], Flags()).graph.outputs.values()
    return named(name, Tensor.of(node))


Setting = tuple[Callable[[str], Model], str, str]
CPU, GPU = ("cpu", "fp32"), ("gpu", "fp32")
HALF, IMAGES = ("cpu", "fp16"), ("adreno", "fp16")
# A and B, and what each is compiled for.
PAIRS: tuple[tuple[Setting, Setting], ...] = (
    ((conv, *CPU), (conv, *CPU)),
    ((conv, *GPU), (conv, *CPU)),
    ((conv, *CPU), (conv, *IMAGES)),
    ((gelu, *CPU), (gelu, *CPU)),
    ((gelu, *HALF), (gelu, *CPU)),
    ((attention, *CPU), (attention, *GPU)),
    ((heads, *CPU), (heads, *CPU)),
    ((heads, *CPU), (heads, *HALF)),
    ((one_hot, *CPU), (one_hot, *CPU)),
    ((one_hot, *GPU), (cumulated, *GPU)),
    ((cumulated, *CPU), (one_hot, *CPU)),
    ((cumulated, *CPU), (cumulated, *CPU)),
    ((layers, *CPU), (layers, *IMAGES)),
    ((layers, *CPU), (attention, *CPU)),
    ((whole, *CPU), (part, *CPU)),
    ((part, *GPU), (whole, *CPU)),
    ((whole, *HALF), (whole, *CPU)),
    ((whole, *CPU), (whole, *HALF)),
    ((cell, *CPU), (other_cell, *CPU)),
    ((other_cell, *CPU), (cell, *GPU)),
    ((eager, *CPU), (eager, *CPU)),
)


def compiled(setting: Setting, name: str) -> tuple[bytes, object]:
    """Return the bytes of an artifact, and all that it was made of."""
    build, target, precision = setting
    outputs, origins = build(name)
    context = CompileContext(spec=SPECS[target], precision=precision)
    plan = plan_of(outputs, context=context, origins=origins)
    made = artifact_of(plan)
    return encode([made.manifest, made.data]), (outputs, plan, made)


def in_a_process(*settings: Setting) -> str:
    """Return the digest of the last of some models, compiled one after the other in a fork."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        alive = [compiled(s, f"model{len(settings) - i}") for i, s in enumerate(settings)]
        os.write(write, hashlib.sha256(alive[-1][0]).hexdigest().encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        return pipe.read()


def main() -> None:
    """Print the digests of each B alone and after its A; nothing is compiled in this process."""
    for a, b in PAIRS:
        sys.stdout.write(f"{in_a_process(b)} {in_a_process(a, b)}\n")
        sys.stdout.flush()  # or the next fork writes it again


def test_no_model_depends_on_those_compiled_before() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    script = "from tests.scheduler.test_independence import main; main()"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [line.split() for line in done.stdout.splitlines()]
    assert len(found) == len(PAIRS)
    assert all(len(digests) == 2 for digests in found), done.stderr
    pairs = [f"{a[0].__name__} then {b[0].__name__}" for a, b in PAIRS]
    assert [p for p, (alone, after) in zip(pairs, found, strict=True) if alone != after] == []
