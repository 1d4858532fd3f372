"""`modeld inspect model.onnx`: everything that is in a model, also one that cannot be compiled."""

import json
from copy import deepcopy
from dataclasses import fields
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from runtime.format.artifact import read_artifact, write_artifact
from runtime.format.interfaces import ActionRule
from scheduler.driving.revisions import load_revisions
from tests.scheduler.driving.edited_models import parts_of, proto_of
from tests.scheduler.onnx_import.tiny_models import mixer, model_of, slices_text, value
from tests.tools.conftest import Modeld
from tools.example_models import build_revision

FLOAT = np.float32


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A model with two operators that nobody has, external weights and metadata."""
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], name="/gemm"),
        helper.make_node("Frobnicate", ["a"], ["b"], name="/odd", domain="com.example"),
        helper.make_node("StringNormalizer", ["b"], ["s"], name="/strings"),
        helper.make_node("Relu", ["a"], ["y"], name="/relu"),
    ]
    props = {
        "model_checkpoint": "run/7",
        "output_slices": slices_text({"left": slice(0, 8), "rest": slice(8, None)}),
        "licence": "none",
    }
    weights = {"w": np.ones((300, 20), FLOAT)}
    proto = model_of(
        nodes, [value("x", ("batch", 300))], [value("y", ("batch", 20))], weights, props
    )
    path = tmp_path / "broken.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_facts_of_a_model_that_cannot_be_compiled(broken: Path, modeld: Modeld) -> None:
    found = modeld(0, "inspect", "--json", broken, "--bind", "batch=3").json
    assert found["compiles"] is False
    assert [(u["node"], u["operator"]) for u in found["unsupported"]] == [
        ("/odd", "com.example:Frobnicate"),
        ("/strings", "StringNormalizer"),
    ]
    assert found["external"] == [{"file": "weights.bin", "tensors": 1, "bytes": 24000}]
    assert found["producer"] == "tests"
    assert found["ir_version"] == 8
    assert found["opsets"] == {"ai.onnx": 17, "com.example": 1}
    assert found["checkpoint"] == "run/7"
    assert found["metadata"] == {"licence": "none"}
    assert found["output_slices"] == {"left": [0, 8], "rest": [8, 20]}
    assert found["element_types"] == {"float32": 24000}
    assert found["inputs"] == [
        {"name": "x", "dtype": "float", "shape": ["batch", 300], "bound": [3, 300]}
    ]
    assert found["flops_by_operator"]["Gemm"] == 2 * 3 * 20 * 300
    assert found["flops"] == 2 * 3 * 20 * 300 + 60
    assert "nodes" not in found
    assert found["interface"] is None


def test_tables_of_a_model_that_cannot_be_compiled(broken: Path, modeld: Modeld) -> None:
    text = modeld(0, "inspect", broken).out
    for line in (
        "cannot be compiled: 2 problems",
        "com.example:Frobnicate",
        "external data: weights.bin",
        "metadata: licence",
        "batch bound to 1",
        "no, see below",
    ):
        assert line in text


def test_nodes_with_shapes_and_work(broken: Path, modeld: Modeld) -> None:
    gemm, odd, _, relu = modeld(0, "inspect", "--json", broken, "--nodes").json["nodes"]
    assert gemm == {
        "name": "/gemm",
        "operator": "Gemm",
        "inputs": ["x", "w"],
        "outputs": ["a"],
        "attributes": {},
        "shape": [1, 20],
        "dtype": "float32",
        "bytes": 80,
        "flops": 12000,
        "constant": False,
    }
    assert (odd["shape"], odd["dtype"]) == (None, "")
    assert relu["flops"] == 20
    rows = [line.split() for line in modeld(0, "inspect", broken, "--nodes").out.splitlines()]
    assert ["/gemm", "Gemm", "1x20", "float32", "0.012", "x,", "w"] in rows


def test_attributes_and_initializers_are_bounded(tmp_path: Path, modeld: Modeld) -> None:
    small = helper.make_tensor("v", TensorProto.FLOAT, (2,), [1.5, -2.0])
    large = helper.make_tensor("v", TensorProto.FLOAT, (9,), range(9))
    body = helper.make_graph([helper.make_node("Relu", ["x"], ["r"])], "then", [], [value("r", ())])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[0, 0, 0, 0], auto_pad="VALID", group=1),
        helper.make_node("Constant", [], ["k"], value=small),
        helper.make_node("Constant", [], ["l"], value=large),
        helper.make_node("Constant", [], ["m"], value_ints=list(range(9))),
        helper.make_node("If", ["on"], ["i"], then_branch=body, else_branch=body),
        helper.make_node("Elu", ["c"], ["y"], alpha=0.5),
    ]
    weights = {"w": np.arange(-4, 5, dtype=FLOAT).reshape(1, 1, 3, 3), "on": np.array(True)}
    path = tmp_path / "a.onnx"
    onnx.save(
        model_of(nodes, [value("x", (1, 1, 4, 4))], [value("y", (1, 1, 2, 2))], weights), path
    )
    found = modeld(0, "inspect", "--json", path, "--nodes").json
    assert [node["attributes"] for node in found["nodes"]] == [
        {"auto_pad": "VALID", "group": 1, "pads": [0, 0, 0, 0]},
        {"value": "float[2] [1.5, -2.0]"},
        {"value": "float[9]"},
        {"value_ints": "9 ints"},
        {"else_branch": "graph of 1 node", "then_branch": "graph of 1 node"},
        {"alpha": 0.5},
    ]
    kernel, switch = found["initializers"]
    about = {"name": "w", "dtype": "float32", "shape": [1, 1, 3, 3], "bytes": 36}
    assert kernel == {**about, "values": None, "min": -4.0, "max": 4.0}
    assert (switch["shape"], switch["values"]) == ([], True)
    text = modeld(0, "inspect", path, "--nodes").out
    assert "auto_pad=VALID group=1 pads=[0, 0, 0, 0]" in text
    assert "-4 to 4" in text


def test_half_of_a_driving_model_is_named(tmp_path: Path, modeld: Modeld) -> None:
    inputs = {
        "desire_pulse": (1, 25, 8),
        "features_buffer": (1, 25, 512),
        "traffic_convention": (1, 2),
    }
    slices = {"plan": slice(0, 990), "desire_state": slice(990, 998)}
    path = tmp_path / "policy.onnx"
    halves = dict.fromkeys(inputs, TensorProto.FLOAT16)
    onnx.save(mixer(inputs, 1000, slices, halves), path)
    known = modeld(0, "inspect", "--json", path).json["interface"]
    assert known["role"] == "policy"
    assert known["title"] == "policy half of a driving model"
    assert known["revisions"] == ["split-2025", "split-2025-11"]
    assert known["inputs"]["features_buffer"] == "features of past frames"
    assert known["float16_inputs"] == list(inputs)
    assert "VISION.onnx POLICY.onnx" in known["advice"]
    assert (known["differences"], known["properties"], known["problem"]) == ([], [], None)
    text = modeld(0, "inspect", path).out
    assert "driving model: policy half" in text
    assert "fits the interfaces" in text


def test_half_of_a_driving_model_that_differs_fits_no_interface(
    tmp_path: Path, modeld: Modeld
) -> None:
    path = tmp_path / "vision.onnx"
    vision = parts_of("split-2025")["vision"]
    onnx.save(proto_of(vision, slices={"hidden_state": (1064, 1320)}), path)
    differences = modeld(0, "inspect", "--json", path).json["interface"]["differences"]
    assert differences == ["head hidden_state: expected 512 values, found 256"]
    text = modeld(0, "inspect", path).out
    assert "nearest interfaces" in text
    assert "fits the interfaces" not in text


def test_a_driving_model_that_cannot_drive_is_told_all_that_is_wrong(
    tmp_path: Path, modeld: Modeld
) -> None:
    images = {"input_imgs": (1, 12, 128, 256), "big_input_imgs": (1, 12, 128, 256)}
    memory = {"desire": (1, 100, 8), "features_buffer": (1, 99, 512), "traffic_convention": (1, 2)}
    memory |= {"lateral_control_params": (1, 2)}
    path = tmp_path / "supercombo.onnx"
    onnx.save(mixer({**images, **memory}, 8), path)
    known = modeld(0, "inspect", "--json", path).json["interface"]
    assert (known["role"], known["revisions"]) == ("supercombo", [])
    assert 'input "prev_desired_curv" (1, 100, 1): is missing' in known["differences"]
    for text in ("prev_desired_curv", "head plan: expected 990 or 4955 values, is missing"):
        assert text in known["problem"]
    assert "cannot drive" in modeld(0, "inspect", path).out


def test_model_and_artifact_name_every_property_with_its_source(
    tmp_path: Path, modeld: Modeld
) -> None:
    (model,) = build_revision(load_revisions()["supercombo-2026"])
    path, out = tmp_path / "supercombo.onnx", tmp_path / "driving.pkl"
    path.write_bytes(model.data)
    (tmp_path / "supercombo.toml").write_text("[rules.action]\nlat_smooth_s = 0.25")
    report = modeld(0, "compile", path, "-o", out, "--no-binary", "--json").json
    assert report["interface"] == "supercombo-2026"
    of_model = modeld(0, "inspect", "--json", path).json["interface"]
    of_artifact = modeld(0, "inspect", "--json", out).json["interface"]
    assert of_artifact["name"] == "supercombo-2026"
    assert of_artifact["reason"].endswith("; rules of supercombo.toml: action.lat_smooth_s")
    assert of_model["properties"] == of_artifact["properties"]
    rows = {row["property"]: (row["value"], row["source"]) for row in of_model["properties"]}
    assert rows["action.lat_smooth_s"] == ("0.25", "declared by supercombo.toml")
    assert rows["image_mode"] == ("nearest", "declared for supercombo-2026")
    derived = "names, shapes and slices of the model"
    assert rows["features"][1] == derived
    assert rows["supercombo: head plan"] == ("990 from 1576", derived)
    named = {f"action.{field.name}" for field in fields(ActionRule)}
    assert named <= set(rows)
    said = f"interface: supercombo-2026, {of_artifact['reason']}"
    assert said in modeld(0, "inspect", path).out.splitlines()
    assert said in modeld(0, "inspect", out).out.splitlines()


def test_an_artifact_says_what_else_its_assumed_interface_could_be(
    tmp_path: Path, modeld: Modeld
) -> None:
    paths = [tmp_path / f"{role}.onnx" for role in ("vision", "policy")]
    for path, part in zip(paths, parts_of("split-2025").values(), strict=True):
        onnx.save(proto_of(part), path)
    out = tmp_path / "driving.pkl"
    modeld(0, "compile", *paths, "-o", out, "--no-binary")
    said = "the preferred one whose inputs and heads fit; split-2025-11 would also fit"
    assert modeld(0, "inspect", "--json", out).json["interface"]["reason"] == said
    assert f"interface: split-2025, {said}" in modeld(0, "inspect", out).out.splitlines()
    assert modeld(0, "inspect", "--json", out).json["problem"] is None
    assert "cannot drive" not in modeld(0, "inspect", out).out
    artifact = read_artifact(out)
    raw = deepcopy(artifact.manifest.raw)
    del raw["metadata"]["interface"]["models"][0]["slices"]["pose"]
    bad = tmp_path / "bad.pkl"
    write_artifact(bad, raw, bytes(artifact.data))
    assert (
        modeld(0, "inspect", "--json", bad).json["problem"]
        == "head pose: expected 12 values, is missing"
    )
    words = " ".join(modeld(0, "inspect", bad).out.split())
    assert "cannot drive head pose: expected 12 values" in words
    assert f"program sha256 {read_artifact(bad).program_sha256}" in words
    assert "lineage vision.producer " in words


def test_names_from_the_model_cannot_reach_the_terminal_raw(tmp_path: Path, modeld: Modeld) -> None:
    path = tmp_path / "odd.onnx"
    nodes = [helper.make_node("Relu", ["x\x1b[2J"], ["y"], name="n\x1b[2J")]
    proto = model_of(
        nodes, [value("x\x1b[2J", (2, 3))], [value("y", (2, 3))], {}, {"a\x1b": "\x1b"}
    )
    proto.producer_name = "\x1b[31m"
    onnx.save(proto, path)
    assert "\x1b" not in modeld(0, "inspect", path, "--nodes").out


def test_a_schedule_takes_bindings(tmp_path: Path, modeld: Modeld) -> None:
    path = tmp_path / "m.onnx"
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    onnx.save(model_of(nodes, [value("x", ("n", 4))], [value("y", ("n", 4))]), path)
    found = modeld(0, "inspect", "--json", "--schedule", path, "--bind", "n=6").json
    assert "6" in json.dumps(found["entries"]["run"])
