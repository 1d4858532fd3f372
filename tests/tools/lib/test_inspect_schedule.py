"""`modeld inspect --schedule` and `--viz`, on a program small enough to check by hand."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from scheduler.device.targets import target_for
from tests.scheduler.onnx_import.tiny_models import model_of, value
from tests.tools.conftest import Modeld
from tests.tools.page import Page
from tools.cli import main

# y = relu(x w1) w2 with x (4, 8), w1 (8, 16), w2 (16, 4): two kernels.
FLOPS = [4 * 16 * 8 * 2 + 4 * 16, 4 * 4 * 16 * 2]
BYTES = [4 * (4 * 8 + 8 * 16 + 4 * 16), 4 * (4 * 16 + 16 * 4 + 4 * 4)]
BETWEEN = 4 * 4 * 16  # bytes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shapes = {"w1": (8, 16), "w2": (16, 4)}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], "/first/MatMul"),
        helper.make_node("Relu", ["a"], ["b"], "/first/Relu"),
        helper.make_node("MatMul", ["b", "w2"], ["y"], "/second/MatMul"),
    ]
    weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    onnx.save(model_of(nodes, [value("x", (4, 8))], [value("y", (4, 4))], weights), path)
    return path


@pytest.fixture(scope="module")
def artifact(model: Path) -> Path:
    path = model.with_suffix(".pkl")
    assert main(["compile", "--plain", str(model), "-o", str(path), "--no-binary", "-q"]) == 0
    return path


def entries(modeld: Modeld, *words: object) -> dict[str, Any]:
    found: dict[str, Any] = modeld(0, "inspect", "--schedule", "--json", *words).json["entries"]
    return found


def test_the_table_of_a_model_is_what_the_hand_says(model: Path, modeld: Modeld) -> None:
    found = modeld(0, "inspect", "--schedule", "--json", model).json
    assert (found["kind"], found["file"]) == ("onnx", "tiny.onnx")
    assert entries(modeld, model) == found["entries"]  # the same every time
    entry = found["entries"]["run"]
    first, second = entry["kernels"]
    assert [first["launch"], second["launch"]] == [0, 1]
    assert first["origin"] == ["/first/MatMul", "/first/Relu"]
    assert second["origin"] == ["/second/MatMul"]
    assert [first["flops"], second["flops"]] == FLOPS
    assert [first["bytes"], second["bytes"]] == BYTES
    assert first["nests"] == [{"ranges": [4, 16], "reduced": [[8]]}]
    assert second["nests"] == [{"ranges": [4, 4], "reduced": [[16]]}]
    assert first["kind"] == second["kind"] == "contract"
    assert first["lanes"] == target_for("auto").lanes  # 16 columns: whole vectors on any CPU
    (between,) = first["results"]
    assert between == {
        "name": "t0",
        "kind": "arena",
        "dtype": "float32",
        "shape": [4, 16],
        "size": BETWEEN,
        "arena_offset": 0,
        "first": 0,
        "last": 1,
    }
    (result,) = second["results"]
    assert (result["kind"], result["name"], result["arena_offset"]) == ("output", "y", None)
    assert entry["totals"] == {
        "kernels": 2,
        "launches": 2,
        "flops": sum(FLOPS),
        "bytes_moved": sum(BYTES),
        "arena_peak": BETWEEN,
        "arena_unplanned": BETWEEN,
        "arena_live": BETWEEN,
    }


def test_an_artifact_says_the_same_but_for_what_it_does_not_hold(
    model: Path, artifact: Path, modeld: Modeld
) -> None:
    made, read = (entries(modeld, path)["run"] for path in (model, artifact))
    assert read["totals"] == made["totals"]
    for one, other in zip(made["kernels"], read["kernels"], strict=True):
        assert (other["lanes"], other["nests"]) == (None, [])
        assert {**one, "lanes": None, "nests": []} == other


def test_the_table_for_people(model: Path, modeld: Modeld) -> None:
    lines = modeld(0, "inspect", "--schedule", model).out.splitlines()
    header = next(line for line in lines if "arena offset" in line)
    assert header.split()[:4] == ["#", "kernel", "kind", "origin"]
    assert "kFLOP" in header.split()  # 4 x 16 sums of 8 products, and their relu: 1088
    row = lines[lines.index(header) + 1]
    for text in ("/first/{MatMul,Relu}", "float32[4x16]", "4x16 over 8", "1.088", "0..1"):
        assert text in row
    total = lines[-1].split()
    assert total[:3] == ["run", "2", "2"]
    assert f"{sum(FLOPS) / 1e3:.3f}" in total


def test_all_entries_in_the_data_one_in_the_table(tiny_model: Path, modeld: Modeld) -> None:
    assert list(entries(modeld, tiny_model)) == ["run", "prepare"]
    one = ("--entry", "prepare")
    assert "kernels of prepare" in modeld(0, "inspect", "--schedule", tiny_model, *one).out
    assert list(entries(modeld, tiny_model, *one)) == ["prepare"]


def page_of(path: Path) -> str:
    """Return the text of a page that is whole and loads nothing."""
    page = Page(path)
    assert page.links == []
    assert {"svg", "table", "template", "script"} <= set(page.seen)
    assert not re.search("https?://", page.text)
    return page.text


def test_the_page_has_the_times_of_a_profile(
    artifact: Path, tmp_path: Path, modeld: Modeld
) -> None:
    rows = [
        {"name": kernel["kernel"], "median_ms": 0.5 * (1 + at)}
        for at, kernel in enumerate(entries(modeld, artifact)["run"]["kernels"])
    ]
    profile, out = tmp_path / "profile.json", tmp_path / "page.html"
    profile.write_text(json.dumps({"entry": "run", "device": "a device", "per_kernel": rows}))
    modeld(0, "inspect", "--schedule", artifact, "--viz", out, "--times", profile)
    text = page_of(out)
    assert "1.00 ms · " in text
    assert "measured on a device" in text
    words = ("inspect", "--schedule", artifact, "--times", profile)
    modeld.refused(2, "--times needs --viz", *words)
    modeld.refused(2, "--times needs --schedule", *(words[0], *words[2:]))
    # Nothing is written when the times are of another artifact.
    profile.write_text(json.dumps({"entry": "run", "per_kernel": rows[:1]}))
    out.unlink()
    modeld.refused(4, "expected the 2 launches", *words, "--viz", out)
    assert not out.exists()


def test_inspect_writes_a_page_of_a_model_and_of_an_artifact(
    model: Path, artifact: Path, tmp_path: Path, modeld: Modeld
) -> None:
    out = tmp_path / "page.html"
    modeld(0, "inspect", "--schedule", model, "--viz", out)
    text = page_of(out)
    assert "/second/MatMul" in text
    assert "<h2>Passes</h2>" in text
    modeld(0, "inspect", "--schedule", artifact, "--viz", out)
    assert "<h2>Passes</h2>" not in page_of(out)


@pytest.fixture
def words(model: Path, tmp_path: Path) -> tuple[object, ...]:
    """The command that compiles the model."""
    return ("compile", "--plain", model, "-o", tmp_path / "o.pkl", "--no-binary")


def test_compile_writes_a_page_and_the_same_artifact(
    words: tuple[object, ...], artifact: Path, tmp_path: Path, modeld: Modeld
) -> None:
    out = tmp_path / "page.html"
    assert modeld(0, *words, "--viz", out, "--json").json["viz"] == str(out)
    first = page_of(out)
    assert (tmp_path / "o.pkl").read_bytes() == artifact.read_bytes()
    modeld(0, *words, "--viz", out)
    assert page_of(out) == first


def test_viz_variable(
    words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modeld: Modeld
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIZ", "1")
    assert "page: build/viz-tiny.html" in modeld(0, *words).out
    page_of(tmp_path / "build/viz-tiny.html")
    monkeypatch.setenv("VIZ", str(tmp_path / "named.html"))
    modeld(0, *words)
    page_of(tmp_path / "named.html")


def test_viz_variable_and_option_want_the_same_of_a_path(
    words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modeld: Modeld
) -> None:
    path = tmp_path / "none" / "page.html"
    missing = "expected its directory to exist, found none"
    refused = modeld.refused(2, missing, *words, "--viz", path).err
    monkeypatch.setenv("VIZ", str(path))
    assert modeld.refused(2, missing, *words).err == refused.replace("--viz", "VIZ")
    monkeypatch.setenv("VIZ", str(words[4]))
    modeld.refused(2, "expected another file", *words)
    assert not path.parent.exists()
