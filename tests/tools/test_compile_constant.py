"""`modeld compile --constant`: inputs that are fixed while compiling."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import runtime
from tools.cli import main

pytestmark = pytest.mark.opencl
# The branch for other rates does not fit this input: it can only be left out.
MODEL = """<ir_version: 9, opset_import: ["" : 18]>
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
def model(tmp_path: Path) -> Path:
    path = tmp_path / "rates.onnx"
    onnx.save(parser.parse_model(MODEL), path)
    return path


def test_fixed_inputs_are_compiled_in_and_verified(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = model.with_suffix(".pkl")
    fixed = ["--constant", "rate=16000", "--constant", "shape=3,2"]
    assert main(["compile", str(model), "-o", str(output), "--verify", *fixed, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verify"]
    with runtime.load_program(output) as program:
        x = np.arange(6, dtype=np.float32).reshape(1, 6)
        np.testing.assert_array_equal(program.run({"x": x})["y"], -x.reshape(3, 2))


@pytest.mark.parametrize(
    ("fixed", "code", "message"),
    [
        ([], 4, "If.*a branch cannot be translated.*fix what its condition comes from"),
        (["rate=16000"], 4, 'its shape \\("shape"\\) depends on run-time data'),
        (["rate=high"], 4, 'input "rate": expected int64\\[\\], found high'),
        (["speed=3"], 4, 'input "speed" is not there'),
        (["rate"], 2, "expected INPUT=VALUE"),
        (["rate=1", "rate=2"], 2, "rate is given twice"),
    ],
)
def test_what_cannot_be_fixed_is_one_line(
    model: Path, capsys: pytest.CaptureFixture[str], fixed: list[str], code: int, message: str
) -> None:
    options = [word for text in fixed for word in ("--constant", text)]
    output = model.with_suffix(".pkl")
    assert main(["compile", str(model), "-o", str(output), *options]) == code
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert re.search(message, error), error
    assert not output.exists()
