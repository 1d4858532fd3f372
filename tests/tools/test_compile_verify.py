"""`modeld compile` with --verify, --bind, --constant and --tune: what is said, written, refused."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, parser

from runtime import load_program
from tests.scheduler.driving.edited_models import parts_of, proto_of
from tests.scheduler.onnx_import.tiny_models import model_of, value
from tests.tools.conftest import Modeld

FLOAT = np.float32


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


@pytest.mark.opencl
def test_bound_dimensions_are_compiled_verified_and_run(
    product: Path, tmp_path: Path, modeld: Modeld
) -> None:
    out = tmp_path / "out.pkl"
    bind = ["--bind", "batch=3", "--bind", "z:1=4"]
    said = modeld(0, "compile", product, "-o", out, *bind, "--verify", "--json")
    assert "note:" not in said.err
    assert said.json["notes"] == []
    (check,) = said.json["verify"]
    assert sorted(output["name"] for output in check["outputs"]) == ["e", "y"]
    assert all(output["problem"] == "" for output in check["outputs"])
    assert check["failures"] == []
    with load_program(out) as program:
        given = {"x": np.ones((3, 8), FLOAT), "z": np.zeros((2, 4), FLOAT)}
        found = program.run(given)
        assert found["y"].shape == (3, 5)
        assert found["e"].tolist() == np.ones((2, 4)).tolist()


def test_what_is_not_bound_is_noted(product: Path, tmp_path: Path, modeld: Modeld) -> None:
    words = ["compile", product, "-o", tmp_path / "out.pkl", "--no-binary", "--json"]
    said = modeld(0, *words, "--bind", "z:1=4")
    (note,) = said.json["notes"]
    assert "batch bound to 1" in note
    assert f"note: {note}" in said.err.splitlines()


@pytest.mark.parametrize(
    "case",
    [
        (["batch"], 2, "--bind batch: expected NAME=SIZE"),
        (["=3"], 2, "expected NAME=SIZE"),
        (["batch=-1"], 2, "expected NAME=SIZE"),
        (["batch=two"], 2, "expected NAME=SIZE"),
        (["batch=²"], 2, "expected NAME=SIZE"),
        (["batch=99999999999"], 2, "from 1 to 2147483647"),
        (["batch=2", "batch=3"], 2, "batch is bound already, to 2"),
        (["bath=2"], 4, '"bath"; found'),
        (["x:1=2"], 4, '"x:1"; found'),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["compile", "inspect"])
def test_bindings_that_cannot_work(
    product: Path, tmp_path: Path, modeld: Modeld, command: str, case: tuple[list[str], int, str]
) -> None:
    bind, code, message = case
    out = tmp_path / "out.pkl"
    options = [word for text in bind for word in ("--bind", text)]
    output = ["-o", out, "--no-binary"] if command == "compile" else []
    assert message in modeld(code, command, product, *output, *options).err
    assert not out.exists()


@pytest.mark.opencl
def test_a_failed_check_writes_nothing_and_says_what_is_wrong(
    tmp_path: Path, modeld: Modeld
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
    last = modeld(1, *words, "--precision", "fp16").err.strip().splitlines()[-1]
    assert last.startswith('modeld: error: cancels.onnx: output "y" at [')
    assert "of the largest value" in last
    assert "try --precision fp32" in last
    assert last.endswith("nothing was written")
    assert list(tmp_path.iterdir()) == [path]
    assert "verified against onnxruntime" in modeld(0, *words).out
    assert out.exists()


@pytest.mark.slow
@pytest.mark.opencl
def test_driving_models_are_verified_one_by_one_and_together(
    tmp_path: Path, modeld: Modeld
) -> None:
    paths = []
    for role, part in parts_of("split-2025").items():
        paths.append(tmp_path / f"{role}.onnx")
        onnx.save(proto_of(part), paths[-1])
    out = tmp_path / "driving.pkl"
    options = ["--camera", "64x64", "--verify", "--json", "--no-binary"]
    reports = modeld(0, "compile", *paths, "-o", out, *options).json["verify"]
    assert [r["model"] for r in reports] == ["vision.onnx", "policy.onnx", "driving"]
    assert [len(r["outputs"]) for r in reports] == [1, 1, 0]
    assert all(r["failures"] == [] for r in reports)
    first = out.read_bytes()
    said = modeld(0, "compile", *reversed(paths), "-o", out, *options)
    assert out.read_bytes() == first
    assert {r["model"] for r in said.json["verify"]} == {r["model"] for r in reports}
    assert "note: interface: assumed split-2025" in said.err


# The branch for other rates does not fit this input: it can only be left out.
RATES = """<ir_version: 9, opset_import: ["" : 18]>
g (float[1,6] x, int64 rate, int64[k] shape) => (float[n,m] y) {
  high = Constant <value = int64 {16000}> ()
  is_high = Equal (rate, high)
  z = If (is_high) <
    then_branch = t () => (float[a,b] u) { u = Neg (x) },
    else_branch = e () => (float[a,b] v) {
      w = Constant <value_ints = [7, 7]> ()
      v = Reshape (x, w)
    }
  >
  y = Reshape (z, shape)
}"""


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    path = tmp_path / "rates.onnx"
    onnx.save(parser.parse_model(RATES), path)
    return path


@pytest.mark.opencl
def test_fixed_inputs_are_compiled_in_and_verified(rates: Path, modeld: Modeld) -> None:
    output = rates.with_suffix(".pkl")
    fixed = ["--constant", "rate=16000", "--constant", "shape=3,2"]
    assert modeld(0, "compile", rates, "-o", output, "--verify", *fixed, "--json").json["verify"]
    with load_program(output) as program:
        x = np.arange(6, dtype=np.float32).reshape(1, 6)
        np.testing.assert_array_equal(program.run({"x": x})["y"], -x.reshape(3, 2))


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("fixed", "code", "message"),
    [
        ([], 4, "fix the inputs of its condition"),
        (["rate=16000"], 4, 'its shape ("shape") depends on run-time data'),
        (["rate=high"], 4, 'input "rate": expected int64[], found high'),
        (["speed=3"], 4, 'input "speed" does not exist'),
        (["rate"], 2, "expected INPUT=VALUE"),
        (["rate=1", "rate=2"], 2, "rate is given twice"),
    ],
    ids=str,
)
def test_what_cannot_be_fixed_is_one_line(
    rates: Path, modeld: Modeld, fixed: list[str], code: int, message: str
) -> None:
    options = [word for text in fixed for word in ("--constant", text)]
    output = rates.with_suffix(".pkl")
    error = modeld.refused(code, message, "compile", rates, "-o", output, *options).err
    assert fixed or re.search("If.*a branch cannot be translated", error)
    assert not output.exists()


@pytest.mark.slow
@pytest.mark.opencl
def test_a_search_is_reported_kept_and_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modeld: Modeld
) -> None:
    """y = x w, with x (4, 32) and w (32, 16): few choices."""
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path))
    w = np.random.default_rng(1).standard_normal((32, 16)).astype(FLOAT)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "/MatMul")]
    path = tmp_path / "tiny.onnx"
    onnx.save(model_of(nodes, [value("x", (4, 32))], [value("y", (4, 16))], {"w": w}), path)
    command = ["compile", path, "-o", tmp_path / "o.pkl", "--target", "cpu", "-q", "--tune"]
    tune = modeld(0, *command, "3.9", "--json").json["tune"]
    rows = [(k["kernel"], k["times"], k["state"]) for k in tune["kernels"]]
    assert rows == [("/MatMul", 1, "searched")]
    assert all(k["best_ms"] <= k["heuristic_ms"] for k in (*tune["kernels"], tune))
    assert len(list((tmp_path / "tuned").glob("cpu-*.json"))) == 1
    said = modeld(0, *command, "0.5").out
    for text in ("heuristic ms", "known", "tuned in"):
        assert text in said
