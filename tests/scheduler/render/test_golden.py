"""Generated text of a few programs, so that a change of the code generator is reviewed as text.

After a change that is meant: `pytest tests/scheduler/render --update-golden`, then read
the diff of tests/golden.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scheduler.ir import dtype as dt
from scheduler.loops.pack import PackedWeight
from scheduler.onnx_import import import_model, load_model
from scheduler.pipeline import Schedule, schedule
from scheduler.tensor.tensor import Tensor
from tools.make_model import write_models

Golden = Callable[[str, str], None]


def weight(*shape: int) -> Tensor:
    return Tensor.weight(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def conv() -> Schedule:
    image = Tensor.input("image", (1, 8, 16, 16))
    return schedule({"y": image.conv2d(weight(16, 8, 3, 3), weight(16), padding=1).relu().node})


def matmul() -> Schedule:
    return schedule({"y": (Tensor.input("x", (4, 32)) @ weight(32, 48) + weight(48)).node})


def layernorm() -> Schedule:
    return schedule({"y": Tensor.input("x", (4, 64)).layernorm().node})


def queue() -> Schedule:
    state = Tensor.state("queue", (5, 8))
    push = state.assign(Tensor.cat([state[1:], Tensor.input("row", (1, 8))]))
    return schedule({"y": push[::4].reshape(1, 16).node}, [push.node])


def gather() -> Schedule:
    frame = Tensor.input("frame", (600,), dt.uint8)
    at = Tensor.input("at", (4, 32), dt.int32).clip(0, 599)
    return schedule({"y": (frame.gather(at).cast(dt.int32) + 1 >> 1).cast(dt.uint8).node})


def describe(plan: Schedule) -> str:
    """Return the kernels of a schedule with their arguments, work and text."""
    parts = []
    for i, kernel in enumerate(plan.lowered):
        arguments = [
            f"packed {a.source.dtype.name}[{a.data.size}]"
            if isinstance(a, PackedWeight)
            else repr(a)
            for a in kernel.arguments
        ]
        parts.append(
            f"// kernel {i}: {kernel.kind}, {kernel.items} items of {max(kernel.lanes)} lanes, "
            f"{kernel.flops} flops, {kernel.kernel.bytes_moved} bytes\n"
            f"// writes {', '.join(map(repr, kernel.storage))}\n"
            f"// reads {', '.join(arguments)}\n{kernel.text}"
        )
    return "\n".join(parts)


@pytest.mark.parametrize(
    "build", [conv, matmul, layernorm, queue, gather], ids=lambda b: b.__name__
)
def test_kernel_text(build: Callable[[], Schedule], golden: Golden) -> None:
    golden(f"kernel_{build.__name__}", describe(build()))


def test_kernels_of_the_example_vision_model(tmp_path: Path, golden: Golden) -> None:
    ((path, _),) = write_models(tmp_path, ("vision",))
    imported = import_model(load_model(path))
    outputs = {n: t.node for n, t in imported.outputs.items()}
    plan = schedule(outputs, origins=imported.origins)
    rows = [
        f"{k.kind:8} items {k.items:3} lanes {max(k.lanes):2} flops {k.flops:10}  "
        f"{' '.join(k.kernel.origin)}"
        for k in plan.lowered
    ]
    golden("kernels_vision", "\n".join(rows) + "\n")


def test_a_difference_says_how_to_update(golden: Golden, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        pytest.skip("golden files are being written")
    with pytest.raises(pytest.fail.Exception, match="--update-golden"):
        golden("kernel_matmul", "something else\n")
