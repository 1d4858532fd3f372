"""How many launches networks take: the bars that fusion has to keep."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from scheduler.onnx_import import import_model, load_model
from scheduler.pipeline import Schedule, schedule
from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.support.programs import load
from tools.make_model import write_models

RNG = np.random.default_rng(11)


def w(*shape: int) -> Tensor:
    return Tensor.weight((RNG.standard_normal(shape) * 0.1).astype(np.float32))


def transformer_block(x: Tensor, heads: int) -> Tensor:
    """Pre-norm, with separate q, k and v projections and a GELU feed-forward part of 4 D."""
    rows, width = x.shape

    def split(value: Tensor) -> Tensor:
        return value.reshape(rows, heads, width // heads).permute(1, 0, 2)

    h = x.layernorm() * w(width) + w(width)
    q, k, v = (split(h @ w(width, width) + w(width)) for _ in range(3))
    weights = ((q @ k.permute(0, 2, 1)) * (width // heads) ** -0.5).softmax()
    x = x + (weights @ v).permute(1, 0, 2).reshape(rows, width) @ w(width, width) + w(width)
    h = x.layernorm() * w(width) + w(width)
    return x + (h @ w(width, 4 * width) + w(4 * width)).gelu() @ w(4 * width, width) + w(width)


def residual_block(x: Tensor, channels: int) -> Tensor:
    h = (x.conv2d(w(channels, channels, 3, 3), padding=1) + w(channels, 1, 1)).relu()
    return (h.conv2d(w(channels, channels, 3, 3), padding=1) + w(channels, 1, 1) + x).relu()


def launches(tensor: Tensor) -> int:
    return len(schedule({"y": tensor.node}).launches)


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_transformer_block_takes_at_most_eight(blocks: int) -> None:
    """T 64, D 128, 4 heads; the best peer takes 14."""
    y = Tensor.input("x", (64, 128))
    for _ in range(blocks):
        y = transformer_block(y, 4)
    assert launches(y) <= 8 * blocks


@pytest.mark.parametrize("blocks", [1, 4])
def test_a_residual_block_takes_two(blocks: int) -> None:
    y = Tensor.input("x", (1, 64, 32, 32))
    for _ in range(blocks):
        y = residual_block(y, 64)
    assert launches(y) == 2 * blocks


def plan_of_model(role: str, directory: Path) -> tuple[Schedule, onnx.GraphProto]:
    ((path, _),) = write_models(directory, (role,))
    imported = import_model(load_model(path))
    plan = schedule({n: t.node for n, t in imported.outputs.items()})
    return plan, onnx.load(path).graph


def test_the_example_vision_model_takes_one_per_convolution_and_ten_more(tmp_path: Path) -> None:
    plan, graph = plan_of_model("vision", tmp_path)
    convolutions = sum(node.op_type == "Conv" for node in graph.node)
    assert convolutions == 60
    assert len(plan.launches) <= convolutions + 10


def test_the_example_policy_model_takes_at_most_twenty_four(tmp_path: Path) -> None:
    plan, _ = plan_of_model("policy", tmp_path)
    assert len(plan.launches) <= 24


@pytest.mark.opencl
def test_blocks_are_right() -> None:
    x, image = Tensor.input("x", (64, 128)), Tensor.input("image", (1, 64, 16, 16))
    outputs = {"rows": transformer_block(x, 4), "image": residual_block(image, 64)}
    given = {
        "x": RNG.standard_normal((64, 128)).astype(np.float32),
        "image": RNG.standard_normal((1, 64, 16, 16)).astype(np.float32),
    }
    want = evaluate(list(outputs.values()), given)
    with load(outputs) as program:
        got = program.run(given)
        for name, expected in zip(outputs, want, strict=True):
            np.testing.assert_allclose(got[name], expected, rtol=2e-4, atol=2e-4, err_msg=name)
