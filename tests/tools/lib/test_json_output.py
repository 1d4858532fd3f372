"""What --json prints is JSON, whatever is in it."""

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.scheduler.onnx_import.tiny_models import model_of, value
from tests.tools.conftest import Modeld
from tools.lib.json_output import json_text

ROOT = Path(__file__).parents[3]


def no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def test_numbers_that_are_none_become_null() -> None:
    infinity = float("inf")
    found = json_text({"a": [1.5, float("nan"), (infinity, -infinity)], "b": {"c": None, "d": 2}})
    assert found == '{"a": [1.5, null, [null, null]], "b": {"c": null, "d": 2}}'
    assert json_text(np.float64("nan")) == "null"


def test_every_command_prints_json_through_one_function() -> None:
    """Only the module that makes it strict may call the encoder."""
    callers = set()
    for path in (ROOT / "tools").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "dump" in text else ():
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("json.dump", "json.dumps"):
                callers.add(path.relative_to(ROOT).as_posix())
    assert callers == {"tools/lib/json_output.py"}


@pytest.mark.opencl
def test_exec_counts_what_is_not_finite(tmp_path: Path, modeld: Modeld) -> None:
    node = helper.make_node("Log", ["x"], ["y"])
    onnx.save(model_of([node], [value("x", (4,))], [value("y", (4,))]), tmp_path / "log.onnx")
    np.savez(tmp_path / "in.npz", x=np.array([-1, 0, 1, 1], np.float32))
    artifact = tmp_path / "log.pkl"
    modeld(0, "compile", tmp_path / "log.onnx", "-o", artifact, "--no-binary")
    files = ("--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz")
    text = modeld(0, "exec", artifact, *files, "--json").out
    (row,) = json.loads(text, parse_constant=no_constant)["outputs"]
    assert (row["min"], row["max"], row["not_finite"]) == (None, None, 2)
    assert "not finite" in modeld(0, "exec", artifact, *files).out
