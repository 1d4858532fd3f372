"""`modeld selftest` and what `modeld compile` has to do with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from runtime.artifact import read_artifact, write_artifact
from tests.runtime import tiny
from tests.scheduler.onnx_import.tiny_models import model_of, value
from tools import cli

pytestmark = pytest.mark.opencl
Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main([str(word) for word in words])
    done = capsys.readouterr()
    return code, done.out, done.err


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """y = x @ w."""
    path = tmp_path / "product.onnx"
    w = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    onnx.save(model_of(nodes, [value("x", (3, 8))], [value("y", (3, 5))], {"w": w}), path)
    return path


def test_a_compiled_model_passes_and_a_changed_weight_does_not(
    product: Path, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "product.pkl"
    code, text, _ = run(capsys, "compile", product, "-o", path, "--json")
    assert (code, json.loads(text)["self_test_runs"]) == (0, 2)
    code, text, _ = run(capsys, "selftest", path)
    assert code == 0
    assert "self-test passed: 2 runs, 30 values" in text
    assert "largest: entry 'run', seed " in text
    report: dict[str, Any] = json.loads(run(capsys, "selftest", path, "--json")[1])
    assert (report["passed"], report["runs"], len(report["deviations"])) == (True, 2, 2)
    assert "2 seeds of run" in run(capsys, "inspect", path)[1]

    sound = read_artifact(path)
    data = bytearray(sound.data)
    data[3] ^= 0x80  # the sign of a weight
    write_artifact(path, sound.manifest.raw, bytes(data))
    code, text, errors = run(capsys, "selftest", path)
    assert (code, errors) == (1, "")
    assert "self-test failed: 2 runs" in text
    assert "do not drive with it" in text
    assert run(capsys, "selftest", path, "--json")[0] == 1


def test_an_artifact_without_one_says_so(product: Path, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "product.pkl"
    code, text, _ = run(capsys, "compile", product, "-o", path, "--no-selftest", "--json")
    assert (code, json.loads(text)["self_test_runs"]) == (0, 0)
    code, text, _ = run(capsys, "selftest", path)
    assert code == 0
    assert "no self-test" in text
    assert "self-test     none" in run(capsys, "inspect", path)[1]


def test_a_damaged_artifact_is_one_line_and_4(tmp_path: Path, capsys: Capture) -> None:
    path = tiny.write(tmp_path / "a.pkl")
    path.write_bytes(path.read_bytes()[:-1])
    code, text, errors = run(capsys, "selftest", path)
    assert (code, text) == (4, "")
    assert "the file is truncated" in errors


def test_without_binaries_no_device_is_asked(
    product: Path, tmp_path: Path, capsys: Capture
) -> None:
    files = [tmp_path / "a.pkl", tmp_path / "b.pkl"]
    for path in files:
        assert run(capsys, "compile", product, "-o", path, "--no-binary")[0] == 0
    # The same input gives the same bytes, vectors included.
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(read_artifact(files[0]).manifest.self_test) == 2


def test_a_device_that_miscomputes_writes_nothing(
    product: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Values of another model stand for a device that computes something else.
    monkeypatch.setenv("SCHEDULE_CACHE", "0")
    monkeypatch.setattr("scheduler.check.vectors.evaluate", lambda *_: [np.ones((3, 5), "f4")])
    path = tmp_path / "product.pkl"
    code, _, errors = run(capsys, "compile", product, "-o", path)
    assert code == 1
    assert "self-test on" in errors
    assert "nothing was written, --no-selftest writes it all the same" in errors
    assert not path.exists()
