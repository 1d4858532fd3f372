"""``modeld regress --bisect``: which of weights, graph, code generation or driver changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from scheduler.device.targets import target_for
from tests.tools.regress import planted as planting
from tests.tools.regress.planted import FRAMES, Planted, add_to_weight
from tools.cli import main

pytestmark = pytest.mark.opencl


def bisected(
    planted: Planted, capsys: pytest.CaptureFixture[str], other: Path, code: int
) -> dict[str, Any]:
    """Return what a bisection of the clean program and another one says."""
    capsys.readouterr()
    pair = ["--bisect", str(planted.model), str(other)]
    assert main(["regress", *pair, "--drives", str(planted.drive), "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_an_artifact_is_itself(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    found = bisected(planted, capsys, planted.model, 0)
    assert found["causes"] == []
    assert not any(fact["differs"] for fact in found["facts"])
    assert {one["frames"] for one in found["experiments"]} == {0}
    assert {one["played"] for one in found["experiments"]} == {FRAMES - 1}


def test_weights(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    node = "/stages.1/blocks.0/mlp.fc2/Conv"
    model = planted.artifact("head.pkl", lambda vision, _: add_to_weight(vision, node, 1e-3))
    found = bisected(planted, capsys, model, 1)
    assert found["causes"] == ["weights"]
    assert "A's kernels with B's weights answer like B, bit by bit" in found["conclusion"]
    (fact,) = [fact for fact in found["facts"] if fact["differs"]]
    assert fact["text"].startswith("1 of ")
    assert "1 of " in fact["text"].partition(node)[2]


def test_code_generation(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(planting, "target_for", lambda _name: target_for("cpu-sse"))
    model = planted.artifact("sse.pkl")
    found = bisected(planted, capsys, model, 1)
    assert found["causes"] == ["code generation"]
    assert "results by roundings" in found["conclusion"]
    texts = [fact["text"] for fact in found["facts"]]
    assert "compiled for name cpu in A, cpu-sse in B" in texts


def test_a_graph_with_another_node(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    path = planted.onnx[1]
    whole = path.read_bytes()
    proto = onnx.load_model_from_string(whole)
    # The plan's head passes through one more node.
    (head,) = [node for node in proto.graph.node if node.name == "/heads.plan.0/Relu"]
    scaled = onnx.helper.make_node(
        "Mul", [head.output[0], "planted.scale"], ["planted"], name="/planted/Mul"
    )
    for node in proto.graph.node:
        for place, name in enumerate(node.input):
            if name == head.output[0]:
                node.input[place] = "planted"
    place = list(proto.graph.node).index(head) + 1
    proto.graph.node.insert(place, scaled)
    value: Any = numpy_helper.from_array(np.array([1.01], np.float32), "planted.scale")
    proto.graph.initializer.append(value)
    try:
        path.write_bytes(proto.SerializeToString())
        model = planted.artifact("node.pkl")
    finally:
        path.write_bytes(whole)
    found = bisected(planted, capsys, model, 1)
    assert "graph" in found["causes"]
    assert any("/planted/Mul" in fact["text"] for fact in found["facts"])
    assert any(fact["text"].startswith("policy model: ") for fact in found["facts"])


def test_a_binary_that_computes_like_its_source(
    planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    path = planted.directory / "binary.pkl"
    built = planted.compiled().build()
    target = {**built.manifest["target"], "driver": "an older one"}
    replace(built, manifest={**built.manifest, "target": target}).write(path)
    found = bisected(planted, capsys, path, 0)
    assert found["causes"] == []
    assert any(
        "binaries were made by driver none for A, an older one for B" in fact["text"]
        for fact in found["facts"]
    )
    names = [one["name"] for one in found["experiments"]]
    assert "B and B from source" in names


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--model", "x.pkl"], "--bisect: expected no --model"),
        (["--update"], "--bisect: expected neither --update"),
        (["--explain"], "--bisect: expected neither --update nor --explain"),
    ],
)
def test_options_that_do_not_go_together(
    capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert main(["regress", "--bisect", "a.pkl", "b.pkl", "--drives", "d", *more]) == 2
    assert said in capsys.readouterr().err
