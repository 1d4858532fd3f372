"""`modeld compile --verify` and `--bind`: what they print, what they write, what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from runtime import load_program
from tests.scheduler.driving.edited_models import parts_of, proto_of
from tests.scheduler.onnx_import.tiny_models import model_of, value
from tools import cli

FLOAT = np.float32
IMAGES = (1, 12, 128, 256)


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """y = x @ w with a symbolic batch, and an input whose second axis has no name."""
    path = tmp_path / "product.onnx"
    w = np.random.default_rng(0).standard_normal((8, 5)).astype(FLOAT)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Exp", ["z"], ["e"]),
    ]
    inputs = [value("x", ("batch", 8)), value("z", (2, None))]
    outputs = [value("y", ("batch", 5)), value("e", (2, None))]
    onnx.save(model_of(nodes, inputs, outputs, {"w": w}), path)
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main([str(word) for word in words])
    done = capsys.readouterr()
    return code, done.out, done.err


@pytest.mark.opencl
def test_bound_dimensions_are_compiled_verified_and_run(
    product: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.pkl"
    bind = ["--bind", "batch=3", "--bind", "z:1=4"]
    code, text, errors = run(capsys, "compile", product, "-o", out, *bind, "--verify", "--json")
    report = json.loads(text)
    assert (code, errors.count("note:")) == (0, 0)
    assert report["notes"] == []
    (check,) = report["verify"]
    assert sorted(output["name"] for output in check["outputs"]) == ["e", "y"]
    assert all(output["problem"] == "" for output in check["outputs"])
    assert check["failures"] == []
    with load_program(out) as program:
        given = {"x": np.ones((3, 8), FLOAT), "z": np.zeros((2, 4), FLOAT)}
        found = program.run(given)
        assert found["y"].shape == (3, 5)
        assert found["e"].tolist() == np.ones((2, 4)).tolist()


def test_what_is_not_bound_is_noted(
    product: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compile", product, "-o", tmp_path / "out.pkl", "--no-binary", "--json"]
    code, text, errors = run(capsys, *words, "--bind", "z:1=4")
    (note,) = json.loads(text)["notes"]
    assert code == 0
    assert "batch bound to 1" in note
    assert f"note: {note}" in errors.splitlines()


@pytest.mark.parametrize(
    "case",
    [
        (["batch"], 2, "--bind batch: expected NAME=SIZE"),
        (["=3"], 2, "expected NAME=SIZE"),
        (["batch=-1"], 2, "expected NAME=SIZE"),
        (["batch=two"], 2, "expected NAME=SIZE"),
        (["batch=²"], 2, "expected NAME=SIZE"),
        (["batch=99999999999"], 2, "at most 2147483647"),
        (["batch=2", "batch=3"], 2, "batch is bound already, to 2"),
        (["bath=2"], 4, '"bath"; found'),
        (["x:1=2"], 4, '"x:1"; found'),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["compile", "inspect"])
def test_bindings_that_cannot_work(
    product: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    case: tuple[list[str], int, str],
) -> None:
    bind, code, message = case
    out = tmp_path / "out.pkl"
    options = [word for text in bind for word in ("--bind", text)]
    output = ["-o", out, "--no-binary"] if command == "compile" else []
    found, _, errors = run(capsys, command, product, *output, *options)
    assert found == code
    assert message in errors
    assert not out.exists()


def test_a_driving_program_takes_no_bindings(
    product: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compile", product, product, "-o", tmp_path / "out.pkl", "--bind", "batch=2"]
    code, _, errors = run(capsys, *words)
    assert code == 2
    assert "--bind and --constant need a plain model" in errors


@pytest.mark.opencl
def test_a_failed_check_writes_nothing_and_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(FLOAT)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"]),
        helper.make_node("MatMul", ["x", "b"], ["q"]),
        helper.make_node("Sub", ["p", "q"], ["y"]),
    ]
    weights: dict[str, NDArray[Any]] = {"a": w, "b": w * FLOAT(1 + 1e-4)}
    path, out = tmp_path / "cancels.onnx", tmp_path / "out.pkl"
    onnx.save(model_of(nodes, [value("x", (4, 64))], [value("y", (4, 64))], weights), path)
    words = ["compile", path, "-o", out, "--verify", "--no-binary"]
    code, _, errors = run(capsys, *words, "--precision", "fp16")
    assert code == 1
    last = errors.strip().splitlines()[-1]
    assert last.startswith('modeld: error: cancels.onnx: output "y" at [')
    assert "of the largest value" in last
    assert "try --precision fp32" in last
    assert last.endswith("nothing was written")
    assert list(tmp_path.iterdir()) == [path]
    code, text, _ = run(capsys, *words)
    assert code == 0
    assert "verified beside onnxruntime" in text
    assert out.exists()


@pytest.mark.slow
@pytest.mark.opencl
def test_driving_models_are_verified_one_by_one_and_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for role, part in parts_of("split-2025").items():
        paths.append(tmp_path / f"{role}.onnx")
        onnx.save(proto_of(part), paths[-1])
    out = tmp_path / "driving.pkl"
    options = ["--camera", "64x64", "--verify", "--json", "--no-binary"]
    code, text, _ = run(capsys, "compile", *paths, "-o", out, *options)
    assert code == 0
    reports = json.loads(text)["verify"]
    assert [r["model"] for r in reports] == ["vision.onnx", "policy.onnx", "driving"]
    assert [len(r["outputs"]) for r in reports] == [1, 1, 0]
    assert all(r["failures"] == [] for r in reports)
    first = out.read_bytes()
    code, text, errors = run(capsys, "compile", *reversed(paths), "-o", out, *options)
    assert code == 0
    assert out.read_bytes() == first
    assert {r["model"] for r in json.loads(text)["verify"]} == {r["model"] for r in reports}
    assert "note: interface: assumed split-2025" in errors
