"""Compiling A and then B gives the bytes of compiling B alone, whatever of A is still alive."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.format.plainpickle import encode
from scheduler.context import CompileContext
from scheduler.device.spec import SPECS
from scheduler.flags import Flags
from scheduler.ir import dtype as dt
from scheduler.ir.origin import Origins
from scheduler.onnx_import import import_model
from scheduler.tensor.eager import make_plan
from scheduler.tensor.tensor import Tensor
from tests.scheduler.onnx_import.onnx_models import parsed
from tests.scheduler.support.programs import artifact_of, plan_of

ROOT = Path(__file__).parents[2]
# Outputs of a model by name, and the names of its nodes.
Model = tuple[dict[str, Tensor], Origins]


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def imported(name: str, text: str, **weights: Any) -> Model:
    """Import a model of ONNX's text syntax with each node called NAME/output."""
    proto = parsed(text, **weights)
    for made in proto.graph.node:
        made.name = f"/{name}/{made.output[0]}"
    model = import_model(proto)
    return model.outputs, model.origins


def conv(name: str) -> Model:
    text = """(float[1,8,16,16] x) => (float[1,4] y)
    { c = Conv<pads = [1, 1, 1, 1]>(x, w) r = Relu(c) p = GlobalAveragePool(r) f = Flatten(p)
      y = Gemm(f, v) }"""
    return imported(name, text, w=floats(16, 8, 3, 3), v=floats(16, 4))


def gelu(name: str) -> Model:
    text = """(float[8,32] x) => (float[8,64] y)
    { m = MatMul(x, w) d = Div(m, root) e = Erf(d) a = Add(e, one) h = Mul(m, a) y = Mul(h, half) }
    """
    known = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
    return imported(name, text, w=floats(32, 64), **known)


def attention(name: str) -> Model:
    text = """(float[40,32] x) => (float[40,32] y)
    { t = Transpose<perm = [1, 0]>(x) s = MatMul(x, t) p = Softmax(s) m = MatMul(p, x)
      y = Add(m, x) }"""
    return imported(name, text)


def heads(name: str) -> Model:
    products = " ".join(f"m{i} = MatMul(x, w{i}) r{i} = Relu(m{i})" for i in range(3))
    text = f"(float[1,32] x) => (float[1,24] y) {{ {products} y = Concat<axis = 1>(r0, r1, r2) }}"
    return imported(name, text, **{f"w{i}": floats(32, 8) + i for i in range(3)})


def one_hot(name: str) -> Model:
    text = """(float[5] x) => (float[5,6] y)
    { n = Cast<to = 7>(x) h = OneHot(n, depth, values) y = Exp(h) }"""
    return imported(name, text, depth=np.int64(6), values=np.array([0.25, 2], np.float32))


def cumulated(name: str) -> Model:
    text = """(float[12,12] x) => (float[12,12] y)
    { c = CumSum(x, axis) t = Trilu<upper = 0>(c) y = LpNormalization(t) }"""
    return imported(name, text, axis=np.int64(1))


def layers(name: str) -> Model:
    text = """(float[16,24] x) => (float[6,24] y)
    { n = LayerNormalization(x, g) m = MatMul(n, w) s = Slice(m, from, to) y = Exp(s) }"""
    known = {"from": np.array([3]), "to": np.array([9])}
    return imported(name, text, g=floats(24), w=floats(24, 24), **known)


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


@pytest.mark.slow
def test_no_model_depends_on_those_compiled_before() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    script = "from tests.scheduler.test_independence import main; main()"
    command = [sys.executable, "-W", "ignore", "-c", script]
    text = subprocess.check_output(command, env=environment, text=True)
    found = [line.split() for line in text.splitlines()]
    assert len(found) == len(PAIRS)
    assert all(len(digests) == 2 for digests in found), found
    pairs = [f"{a[0].__name__} then {b[0].__name__}" for a, b in PAIRS]
    assert [p for p, (alone, after) in zip(pairs, found, strict=True) if alone != after] == []


def test_a_model_does_not_depend_on_one_that_is_alive() -> None:
    """A few of them in this process, whatever was compiled in it before."""
    for a, b in PAIRS[::7]:
        first = compiled(b, "model1")[0]
        kept = compiled(a, "model2")
        assert compiled(b, "model1")[0] == first
        del kept
