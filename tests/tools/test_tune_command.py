"""`modeld compile --tune`: what it says, what it keeps, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tools.cli import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = x w, with x (4, 32) and w (32, 16): few choices."""
    values = np.random.default_rng(1).standard_normal((32, 16)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "/MatMul")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 32])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 16])
    weight = numpy_helper.from_array(values, "w")
    graph = helper.make_graph(nodes, "tiny", [x], [y], [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    onnx.save(made, str(path))
    return path


@pytest.mark.slow
@pytest.mark.opencl
def test_a_search_is_reported_kept_and_used_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path))
    command = ["compile", str(model), "-o", str(tmp_path / "o.pkl"), "--target", "cpu"]
    assert main([*command, "--tune", "3.9", "--json", "-q"]) == 0
    report = json.loads(capsys.readouterr().out)
    kernels = report["tune"]["kernels"]
    assert [(k["kernel"], k["times"], k["state"]) for k in kernels] == [("/MatMul", 1, "searched")]
    assert all(k["best_ms"] <= k["heuristic_ms"] for k in kernels)
    assert report["tune"]["best_ms"] <= report["tune"]["heuristic_ms"]
    assert len(list((tmp_path / "tuned").glob("cpu-*.json"))) == 1
    assert main([*command, "--tune", "0.5", "-q"]) == 0
    said = capsys.readouterr().out
    assert "heuristic ms" in said
    assert "known" in said
    assert "tuned in" in said


@pytest.mark.opencl
def test_what_cannot_be_tuned_is_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compile", str(model), "-o", str(tmp_path / "o.pkl")]
    for words, code, part in (
        (["--tune", "0"], 2, "--tune 0: expected"),
        (["--tune", "nan"], 2, "--tune nan: expected"),
        (["--tune", "1", "--target", "adreno"], 2, "expected a CPU target"),
    ):
        assert main([*command, *words]) == code
        said = capsys.readouterr().err.strip().splitlines()
        assert len(said) == 1
        assert part in said[0]
    assert not (tmp_path / "o.pkl").exists()
