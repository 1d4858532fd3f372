"""``modeld regress --bisect``: which of weights, graph, code generation or driver changed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from scheduler.device.targets import target_for
from tests.tools import tiny_driving
from tests.tools.conftest import FRAMES as TINY_FRAMES
from tests.tools.conftest import Modeld
from tests.tools.regress.conftest import Regress, edited_tiny
from tests.tools.regress.planted import FRAMES, Planted, add_to_weight

pytestmark = pytest.mark.opencl

NODE = "/stages.1/blocks.0/mlp.fc2/Conv"
READ_BACKWARDS = "bias[%d - i] + mode[i] * (light"
SAME_WEIGHTS = "A's kernels with B's weights give the same bits as B"


def bisected(modeld: Modeld, one: Any, other: Path, code: int) -> dict[str, Any]:
    """Return what a bisection says of the program of `one`, and another, on its drive."""
    drive = one.drive if isinstance(one, Planted) else one.video
    words = ["--bisect", one.model, other, "--drives", drive, "--json"]
    found: dict[str, Any] = modeld(code, "regress", *words).json
    return found


def check_same(found: dict[str, Any], played: int) -> None:
    assert found["causes"] == []
    assert not any(fact["differs"] for fact in found["facts"])
    assert {one["frames"] for one in found["experiments"]} == {0}
    assert {one["played"] for one in found["experiments"]} == {played}


def texts(found: dict[str, Any], *, differing: bool = False) -> list[str]:
    return [fact["text"] for fact in found["facts"] if fact["differs"] or not differing]


def test_a_hand_written_artifact_is_itself_and_differs_by_its_weights(
    regress: Regress, modeld: Modeld, tmp_path: Path
) -> None:
    check_same(bisected(modeld, regress, regress.model, 0), TINY_FRAMES)
    bias, mode = tiny_driving._vision_weights()
    moved = edited_tiny(tmp_path / "moved.pkl", _vision_weights=lambda: (bias + 0.5, mode))
    found = bisected(modeld, regress, moved, 1)
    assert found["causes"] == ["weights"]
    assert SAME_WEIGHTS in found["conclusion"]


def test_a_kernel_that_reads_the_same_weights_in_another_order_is_code_generation(
    regress: Regress, modeld: Modeld, tmp_path: Path
) -> None:
    # The kernel keeps its name, so it is its text that says what changed.
    last = tiny_driving.VISION.width - 1
    source = tiny_driving.SOURCE.replace("bias[i] + mode[i] * (light", READ_BACKWARDS % last)
    bias, mode = tiny_driving._vision_weights()
    moved = edited_tiny(
        tmp_path / "moved.pkl",
        SOURCE=source.replace("(light +", "(1.5f * light +"),
        _vision_weights=lambda: (bias[::-1], mode),
    )
    found = bisected(modeld, regress, moved, 1)
    assert found["causes"] == ["code generation"]
    said = " ".join(texts(found, differing=True))
    assert "1 of 4 weights hold the same values in another order, first vision_bias" in said
    assert "1 of 3 kernels of A have another text in B: vision" in said


def test_weights_of_another_order_for_the_same_kernel_are_weights(
    regress: Regress, modeld: Modeld, tmp_path: Path
) -> None:
    bias, mode = tiny_driving._vision_weights()
    turned = edited_tiny(tmp_path / "turned.pkl", _vision_weights=lambda: (bias[::-1], mode))
    found = bisected(modeld, regress, turned, 1)
    assert found["causes"] == ["weights"]
    assert SAME_WEIGHTS in found["conclusion"]


@pytest.mark.slow
def test_an_artifact_is_itself(planted: Planted, modeld: Modeld) -> None:
    check_same(bisected(modeld, planted, planted.model, 0), FRAMES - 1)


@pytest.mark.slow
def test_weights(planted: Planted, modeld: Modeld) -> None:
    model = planted.artifact("head.pkl", lambda vision, _: add_to_weight(vision, NODE, 1e-3))
    found = bisected(modeld, planted, model, 1)
    assert found["causes"] == ["weights"]
    assert SAME_WEIGHTS in found["conclusion"]
    (text,) = texts(found, differing=True)
    assert text.startswith("1 of ")
    assert "1 of " in text.partition(NODE)[2]


@pytest.mark.slow
def test_code_generation(planted: Planted, modeld: Modeld) -> None:
    model = planted.artifact("sse.pkl", target=target_for("cpu-sse"))
    found = bisected(modeld, planted, model, 1)
    assert found["causes"] == ["code generation"]
    assert "results by roundings" in found["conclusion"]
    assert "compiled for name cpu in A, cpu-sse in B" in texts(found)


@pytest.mark.slow
def test_a_graph_with_another_node(planted: Planted, modeld: Modeld) -> None:
    vision, policy = planted.onnx
    proto = onnx.load(policy)
    # The plan's head passes through one more node.
    (head,) = [node for node in proto.graph.node if node.name == "/heads.plan.0/Relu"]
    scaled = onnx.helper.make_node(
        "Mul", [head.output[0], "planted.scale"], ["planted"], name="/planted/Mul"
    )
    for node in proto.graph.node:
        for place, name in enumerate(node.input):
            if name == head.output[0]:
                node.input[place] = "planted"
    proto.graph.node.insert(list(proto.graph.node).index(head) + 1, scaled)
    value: Any = numpy_helper.from_array(np.array([1.01], np.float32), "planted.scale")
    proto.graph.initializer.append(value)
    other = planted.place / policy.name
    other.write_bytes(proto.SerializeToString())
    model = planted.artifact("node.pkl", onnx=(vision, other))
    found = bisected(modeld, planted, model, 1)
    assert "graph" in found["causes"]
    assert any("/planted/Mul" in text for text in texts(found))
    assert any(text.startswith("policy model: ") for text in texts(found))


@pytest.mark.slow
def test_a_binary_that_computes_like_its_source(planted: Planted, modeld: Modeld) -> None:
    path = planted.place / "binary.pkl"
    built = planted.compiled().build()
    target = {**built.manifest["target"], "driver": "an older one"}
    replace(built, manifest={**built.manifest, "target": target}).write(path)
    found = bisected(modeld, planted, path, 0)
    assert found["causes"] == []
    said = "binaries were made by driver none for A, an older one for B"
    assert any(said in text for text in texts(found))
    assert "B and B from source" in [one["name"] for one in found["experiments"]]
