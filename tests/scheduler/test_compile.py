"""`modeld compile` and `modeld exec` on whole models: numbers, bytes, and files of no use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from runtime import read_artifact
from tools import cli
from tools.make_model import write_models

pytestmark = pytest.mark.opencl
Array = NDArray[Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    return {path.stem: path for path, _ in write_models(directory)}


@pytest.fixture(scope="module")
def artifacts(models: dict[str, Path]) -> dict[str, Path]:
    result = {}
    for name, path in models.items():
        result[name] = path.with_suffix(".pkl")
        assert cli.main(["compile", str(path), "-o", str(result[name])]) == 0
    return result


def random_inputs(session: onnxruntime.InferenceSession, seed: int) -> dict[str, Array]:
    """Random values of the types a model takes; seeds give different magnitudes too."""
    rng = np.random.default_rng(seed)
    inputs: dict[str, Array] = {}
    for spec in session.get_inputs():
        if spec.type == "tensor(uint8)":
            inputs[spec.name] = rng.integers(0, 256, spec.shape).astype(np.uint8)
        else:
            values = rng.standard_normal(spec.shape) * 0.5 * (seed + 1)
            inputs[spec.name] = values.astype(np.float32)
    return inputs


@pytest.mark.parametrize("name", ["vision", "policy"])
def test_example_models_agree_with_onnxruntime(
    name: str, models: dict[str, Path], artifacts: dict[str, Path], tmp_path: Path
) -> None:
    session = onnxruntime.InferenceSession(str(models[name]), providers=["CPUExecutionProvider"])
    previous = None
    for seed in range(5):
        inputs = random_inputs(session, seed)
        given, got = tmp_path / "in.npz", tmp_path / "out.npz"
        np.savez(given, allow_pickle=False, **inputs)
        arguments = ["exec", str(artifacts[name]), "--inputs", str(given), "--outputs", str(got)]
        assert cli.main(arguments) == 0
        expected = session.run(None, inputs)
        with np.load(got) as outputs:
            for spec, reference in zip(session.get_outputs(), expected, strict=True):
                difference = np.abs(outputs[spec.name] - reference).max()
                assert difference <= 1e-4 * np.abs(reference).max()
                assert previous is None or not np.array_equal(previous, reference)
                previous = reference


def test_compiling_twice_gives_the_same_bytes(models: dict[str, Path], tmp_path: Path) -> None:
    paths = [tmp_path / "first.pkl", tmp_path / "second.pkl"]
    for path in paths:
        arguments = ["compile", str(models["policy"]), "-o", str(path), "--no-binary"]
        assert cli.main(arguments) == 0
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_without_binaries_a_driving_program_has_its_entries(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "driving.pkl"
    pair = [str(models["vision"]), str(models["policy"])]
    cameras = ["--camera", "320x200", "--camera", "640X480"]
    assert cli.main(["compile", *pair, "-o", str(out), *cameras, "--no-binary", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    entries = ["run", "prepare"]
    assert list(report["entries"]) == entries
    artifact = read_artifact(out)
    assert [entry.name for entry in artifact.manifest.entries] == entries
    assert report["arena_bytes"] < report["arena_unplanned_bytes"]


def save_graph(path: Path, *nodes: onnx.NodeProto) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    graph = helper.make_graph(list(nodes), "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def refuse(
    arguments: Sequence[str], out: Path, capsys: pytest.CaptureFixture[str], code: int
) -> str:
    """Run `modeld compile`; expect the exit code, one line and no file; return the line."""
    capsys.readouterr()
    assert cli.main(["compile", *arguments, "-o", str(out)]) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("modeld: error: ")
    assert list(out.parent.glob(f"*{out.name}*")) == []
    return lines[0]


def test_unsupported_operators_are_all_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.onnx"
    save_graph(
        path,
        helper.make_node("Bernoulli", ["x"], ["a"], name="/head/Bernoulli"),
        helper.make_node("StringNormalizer", ["a"], ["y"], name="/tail/Strings"),
    )
    line = refuse([str(path)], tmp_path / "out.pkl", capsys, 4)
    for text in ("odd.onnx", "Bernoulli", "/head/Bernoulli", "StringNormalizer", "/tail/Strings"):
        assert text in line


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refuse([str(tmp_path / "none.onnx")], tmp_path / "out.pkl", capsys, 4)
    assert "none.onnx" in line


@pytest.mark.parametrize("keep", [0.5, 0.001, 0.0])
def test_a_truncated_file_is_refused(
    keep: float, models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = models["policy"].read_bytes()
    path = tmp_path / "short.onnx"
    path.write_bytes(whole[: int(len(whole) * keep)])
    assert "short.onnx" in refuse([str(path)], tmp_path / "out.pkl", capsys, 4)


@pytest.mark.parametrize("size", ["big", "1928", "0x0", "321x200", "-320x200", "320x200x3", "9x9"])
def test_a_bad_camera_size_is_a_usage_error(
    size: str, models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = [str(models["vision"]), str(models["policy"])]
    line = refuse([*pair, f"--camera={size}"], tmp_path / "out.pkl", capsys, 2)
    assert f"--camera {size}" in line
    assert "WxH" in line


def test_other_misuse_is_a_usage_error(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vision, policy = str(models["vision"]), str(models["policy"])
    out = tmp_path / "out.pkl"
    assert "no camera" in refuse([policy, "--camera", "320x200"], out, capsys, 2)
    assert "exactly one" in refuse([vision, policy, "--plain"], out, capsys, 2)
    assert "given twice" in refuse([vision, policy, policy], out, capsys, 4)
    assert "found 4" in refuse([vision, policy, policy, vision], out, capsys, 4)
    nowhere = tmp_path / "none" / "out.pkl"
    assert "its directory to exist" in refuse([policy], nowhere, capsys, 2)


def test_a_model_that_is_no_policy_is_refused(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vision = str(models["vision"])
    line = refuse([vision, vision, "--camera", "320x200"], tmp_path / "out.pkl", capsys, 4)
    assert "features_buffer" in line
