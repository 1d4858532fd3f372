"""`modeld compile` and `modeld exec` on whole models: numbers, and files of no use."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from runtime import read_artifact
from tests.scheduler.onnx_import.onnx_models import model_of, node, ort_session
from tests.scheduler.onnx_import.test_networks import feeds_of
from tests.support.built import example_models
from tools import cli

pytestmark = pytest.mark.opencl
NAMES = ("vision", "policy")


@pytest.fixture(scope="module")
def models() -> dict[str, Path]:
    return example_models(*NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_example_models_agree_with_onnxruntime(
    name: str, models: dict[str, Path], tmp_path: Path
) -> None:
    session = ort_session(onnx.load(models[name]))
    compiled, given, got = (tmp_path / file for file in ("m.pkl", "in.npz", "out.npz"))
    assert cli.main(["compile", str(models[name]), "-o", str(compiled)]) == 0
    for seed in range(5):
        inputs = feeds_of(session, {}, seed)
        np.savez(given, allow_pickle=False, **inputs)
        arguments = ["exec", str(compiled), "--inputs", str(given), "--outputs", str(got)]
        assert cli.main(arguments) == 0
        with np.load(got) as outputs:
            for spec, expected in zip(
                session.get_outputs(), session.run(None, inputs), strict=True
            ):
                worst = np.abs(outputs[spec.name] - expected).max()
                assert worst <= 1e-4 * np.abs(expected).max()


@pytest.mark.slow
def test_without_binaries_a_driving_program_has_its_entries(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "driving.pkl"
    cameras = ["--camera", "320x200", "--camera", "640X480"]
    command = ["compile", *map(str, models.values()), "-o", str(out), *cameras]
    assert cli.main([*command, "--no-binary", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    entries = ["run", "prepare"]
    assert list(report["entries"]) == entries
    assert [entry.name for entry in read_artifact(out).manifest.entries] == entries
    assert report["arena_bytes"] < report["arena_unplanned_bytes"]


Refuse = Callable[..., str]


@pytest.fixture
def refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Return a function that runs `modeld compile` and returns the one line of its error."""

    def run(code: int, *arguments: str | Path, out: str = "out.pkl") -> str:
        capsys.readouterr()
        path = tmp_path / out
        assert cli.main(["compile", *map(str, arguments), "-o", str(path)]) == code
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line.startswith("modeld: error: ")
        assert list(path.parent.glob(f"*{path.name}*")) == []
        return line

    return run


def test_unsupported_operators_are_all_listed(tmp_path: Path, refuse: Refuse) -> None:
    nodes = [node("Bernoulli", "x", "a", "/head/Bernoulli")]
    nodes.append(node("StringNormalizer", "a", "y", "/tail/Strings"))
    path = tmp_path / "odd.onnx"
    path.write_bytes(model_of(nodes).SerializeToString())
    line = refuse(4, path)
    for text in ("odd.onnx", "Bernoulli", "/head/Bernoulli", "StringNormalizer", "/tail/Strings"):
        assert text in line


@pytest.mark.parametrize("keep", [0.5, 0.001, 0.0, None])
def test_a_truncated_or_missing_file_is_refused(
    keep: float | None, models: dict[str, Path], tmp_path: Path, refuse: Refuse
) -> None:
    path = tmp_path / "short.onnx"
    if keep is not None:
        whole = models["policy"].read_bytes()
        path.write_bytes(whole[: int(len(whole) * keep)])
    assert "short.onnx" in refuse(4, path)


@pytest.mark.parametrize("size", ["big", "1928", "0x0", "321x200", "-320x200", "320x200x3", "9x9"])
def test_a_bad_camera_size_is_a_usage_error(
    size: str, models: dict[str, Path], refuse: Refuse
) -> None:
    line = refuse(2, *models.values(), f"--camera={size}")
    assert f"--camera {size}" in line
    assert "WxH" in line


@pytest.mark.parametrize(
    ("code", "arguments", "message"),
    [
        (2, "policy --camera 320x200", "no camera"),
        (2, "vision policy --plain", "exactly one"),
        (4, "vision policy policy", "given twice"),
        (4, "vision vision --camera 320x200", "features_buffer"),
    ],
)
def test_other_misuse(
    code: int, arguments: str, message: str, models: dict[str, Path], refuse: Refuse
) -> None:
    assert message in refuse(code, *(models.get(word, word) for word in arguments.split()))
