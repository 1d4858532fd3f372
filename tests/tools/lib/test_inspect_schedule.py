"""`modeld inspect --schedule` and `--viz`, on a program small enough to check by hand."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from scheduler.device.targets import target_for
from tools.cli import main

# y = relu(x w1) w2 with x (4, 8), w1 (8, 16), w2 (16, 4): two kernels.
FLOPS = [4 * 16 * 8 * 2 + 4 * 16, 4 * 4 * 16 * 2]
BYTES = [4 * (4 * 8 + 8 * 16 + 4 * 16), 4 * (4 * 16 + 16 * 4 + 4 * 4)]
BETWEEN = 4 * 4 * 16  # bytes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    weights = [
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
        for name, shape in (("w1", (8, 16)), ("w2", (16, 4)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], "/first/MatMul"),
        helper.make_node("Relu", ["a"], ["b"], "/first/Relu"),
        helper.make_node("MatMul", ["b", "w2"], ["y"], "/second/MatMul"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4])
    graph = helper.make_graph(nodes, "tiny", [x], [y], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    onnx.save(made, str(path))
    return path


@pytest.fixture(scope="module")
def artifact(model: Path) -> Path:
    path = model.with_suffix(".pkl")
    assert main(["compile", "--plain", str(model), "-o", str(path), "--no-binary", "-q"]) == 0
    return path


def inspect_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["inspect", "--schedule", "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_table_of_a_model_is_what_the_hand_says(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = inspect_json(capsys, str(model))
    assert (found["kind"], found["file"]) == ("onnx", "tiny.onnx")
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


def test_totals_are_the_sums_of_the_rows(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = inspect_json(capsys, str(model))["entries"]["run"]
    kernels, totals = entry["kernels"], entry["totals"]
    assert totals == {
        "kernels": len({k["kernel"] for k in kernels}),
        "launches": len(kernels),
        "flops": sum(k["flops"] for k in kernels),
        "bytes_moved": sum(k["bytes"] for k in kernels),
        "arena_peak": BETWEEN,
        "arena_unplanned": BETWEEN,
        "arena_live": BETWEEN,
    }
    assert (totals["flops"], totals["bytes_moved"]) == (sum(FLOPS), sum(BYTES))


def test_an_artifact_says_the_same_but_for_what_it_does_not_hold(
    model: Path, artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = inspect_json(capsys, str(model))["entries"]["run"]
    read = inspect_json(capsys, str(artifact))["entries"]["run"]
    assert read["totals"] == made["totals"]
    for one, other in zip(made["kernels"], read["kernels"], strict=True):
        assert (other["lanes"], other["nests"]) == (None, [])
        assert {**one, "lanes": None, "nests": []} == other


def test_the_table_for_people(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--schedule", str(model)]) == 0
    lines = capsys.readouterr().out.splitlines()
    header = next(line for line in lines if "arena offset" in line)
    assert header.split()[:4] == ["#", "kernel", "kind", "origin"]
    assert "kFLOP" in header.split()  # 4 x 16 sums of 8 products, and their relu: 1088
    row = lines[lines.index(header) + 1]
    for text in ("/first/{MatMul,Relu}", "float32[4x16]", "4x16 over 8", "1.088", "0..1"):
        assert text in row
    total = lines[-1].split()
    assert total[:3] == ["run", "2", "2"]
    assert f"{sum(FLOPS) / 1e3:.3f}" in total


def test_the_same_every_time(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect_json(capsys, str(model)) == inspect_json(capsys, str(model))


def test_all_entries_in_the_data_one_in_the_table(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = list(inspect_json(capsys, str(tiny_model))["entries"])
    assert names == ["run", "prepare"]
    assert main(["inspect", "--schedule", str(tiny_model), "--entry", names[1]]) == 0
    assert f"kernels of {names[1]}" in capsys.readouterr().out
    assert list(inspect_json(capsys, str(tiny_model), "--entry", names[1])["entries"]) == [names[1]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--schedule", "MODEL", "--entry", "walk"], "--entry walk: expected one of run"),
        (["MODEL", "--entry", "run"], "--entry needs --schedule"),
        (["MODEL", "--viz", "out.html"], "--viz needs --schedule"),
        (["--schedule", "MODEL", "--viz", "MODEL"], "expected another file than the input"),
    ],
)
def test_usage(
    model: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", *(str(model) if w == "MODEL" else w for w in words)]) == 2
    assert message in capsys.readouterr().err


def test_a_log_has_no_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "x.rlog.bz2"
    log.write_bytes(b"BZh9" + bytes(60))
    assert main(["inspect", "--schedule", str(log)]) == 2
    assert "found a log" in capsys.readouterr().err


# --- pages ------------------------------------------------------------------------------------


class Loads(HTMLParser):
    """Collects what a page would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [f"{tag} {n}={v}" for n, v in attrs if n in ("src", "href", "data")]


def assert_is_a_page(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    loads = Loads(text)
    assert loads.found == []
    assert {"svg", "table", "template", "script"} <= set(loads.tags)
    assert "http://" not in text
    assert "https://" not in text
    return text


def test_inspect_writes_a_page_of_a_model_and_of_an_artifact(
    model: Path, artifact: Path, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    assert main(["inspect", "--schedule", str(model), "--viz", str(out)]) == 0
    assert "/second/MatMul" in assert_is_a_page(out)
    assert "<h2>Passes</h2>" in out.read_text(encoding="utf-8")
    assert main(["inspect", "--schedule", str(artifact), "--viz", str(out)]) == 0
    assert "<h2>Passes</h2>" not in assert_is_a_page(out)


def compile_words(model: Path, tmp_path: Path) -> list[str]:
    return ["compile", "--plain", str(model), "-o", str(tmp_path / "o.pkl"), "--no-binary"]


def test_compile_writes_a_page_and_the_same_artifact(
    model: Path, artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert main([*compile_words(model, tmp_path), "--viz", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["viz"] == str(out)
    first = assert_is_a_page(out)
    assert (tmp_path / "o.pkl").read_bytes() == artifact.read_bytes()
    assert main([*compile_words(model, tmp_path), "--viz", str(out)]) == 0
    assert assert_is_a_page(out) == first


def test_viz_variable(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIZ", "1")
    assert main(compile_words(model, tmp_path)) == 0
    assert "page: build/viz-tiny.html" in capsys.readouterr().out
    assert_is_a_page(tmp_path / "build/viz-tiny.html")
    monkeypatch.setenv("VIZ", str(tmp_path / "named.html"))
    assert main(compile_words(model, tmp_path)) == 0
    assert_is_a_page(tmp_path / "named.html")


def test_viz_variable_and_option_want_the_same_of_a_path(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = compile_words(model, tmp_path)
    path = tmp_path / "none" / "page.html"
    assert main([*words, "--viz", str(path)]) == 2
    refused = capsys.readouterr().err
    assert "expected its directory to exist, found none" in refused
    monkeypatch.setenv("VIZ", str(path))
    assert main(words) == 2
    assert capsys.readouterr().err == refused.replace("--viz", "VIZ")
    monkeypatch.setenv("VIZ", words[4])
    assert main(words) == 2
    assert "expected another file" in capsys.readouterr().err
    assert not path.parent.exists()


def test_a_page_may_not_replace_the_artifact(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = compile_words(model, tmp_path)
    assert main([*words, "--viz", words[4]]) == 2
    assert "expected another file" in capsys.readouterr().err
