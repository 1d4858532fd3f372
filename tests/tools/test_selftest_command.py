"""`modeld selftest` and what `modeld compile` has to do with it."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from runtime.format.artifact import read_artifact, write_artifact
from tests.scheduler.onnx_import.tiny_models import model_of, value
from tests.tools.conftest import Modeld

pytestmark = pytest.mark.opencl


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """y = x @ w."""
    path = tmp_path / "product.onnx"
    w = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    onnx.save(model_of(nodes, [value("x", (3, 8))], [value("y", (3, 5))], {"w": w}), path)
    return path


def test_a_compiled_model_passes_and_a_changed_weight_does_not(
    product: Path, tmp_path: Path, modeld: Modeld
) -> None:
    path = tmp_path / "product.pkl"
    assert modeld(0, "compile", product, "-o", path, "--json").json["self_test_runs"] == 2
    text = modeld(0, "selftest", path).out
    assert "self-test passed: 2 runs, 30 values" in text
    assert "largest: entry 'run', seed " in text
    report = modeld(0, "selftest", path, "--json").json
    assert (report["passed"], report["runs"], len(report["deviations"])) == (True, 2, 2)
    assert "2 seeds of run" in modeld(0, "inspect", path).out

    sound = read_artifact(path)
    data = bytearray(sound.data)
    data[3] ^= 0x80  # the sign of a weight
    write_artifact(path, sound.manifest.raw, bytes(data))
    said = modeld(1, "selftest", path)
    assert said.err == ""
    assert "self-test failed: 2 runs" in said.out
    assert "do not drive with it" in said.out
    modeld(1, "selftest", path, "--json")


def test_an_artifact_without_one_says_so(product: Path, tmp_path: Path, modeld: Modeld) -> None:
    path = tmp_path / "product.pkl"
    report = modeld(0, "compile", product, "-o", path, "--no-selftest", "--json").json
    assert report["self_test_runs"] == 0
    assert "no self-test" in modeld(0, "selftest", path).out
    assert re.search(r"^self-test +none$", modeld(0, "inspect", path).out, re.MULTILINE)


def test_without_binaries_no_device_is_asked(product: Path, tmp_path: Path, modeld: Modeld) -> None:
    files = [tmp_path / "a.pkl", tmp_path / "b.pkl"]
    for path in files:
        modeld(0, "compile", product, "-o", path, "--no-binary")
    # The same input gives the same bytes, vectors included.
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(read_artifact(files[0]).manifest.self_test) == 2


def test_a_device_that_miscomputes_writes_nothing(
    product: Path, tmp_path: Path, modeld: Modeld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Values of another model stand for a device that computes something else.
    monkeypatch.setenv("SCHEDULE_CACHE", "0")
    monkeypatch.setattr("scheduler.check.vectors.evaluate", lambda *_: [np.ones((3, 5), "f4")])
    path = tmp_path / "product.pkl"
    errors = modeld(1, "compile", product, "-o", path).err
    assert "self-test on" in errors
    assert "nothing was written; --no-selftest writes it anyway" in errors
    assert not path.exists()
