"""The driver monitoring examples: names, shapes and heads of each revision; plausible drivers."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from scheduler.driving.revisions import load_monitoring
from tools import cli
from tools.example_models import ExampleModel, build_driver_monitoring

REVISIONS = load_monitoring()

Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def built() -> dict[str, ExampleModel]:
    return {name: build_driver_monitoring(revision) for name, revision in REVISIONS.items()}


def session(model: ExampleModel) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.data, options)


def picture(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (30, 45)).repeat(32, 0).repeat(32, 1)
    noisy = np.clip(blocks + rng.normal(0, 8, blocks.shape), 0, 255).astype(np.uint8)
    return {"input_img": noisy.reshape(1, -1), "calib": np.zeros((1, 3), np.float32)}


@pytest.mark.parametrize("name", REVISIONS)
def test_names_shapes_and_slices_are_those_of_the_revision(
    built: dict[str, ExampleModel], name: str
) -> None:
    row = REVISIONS[name].model
    loaded = session(built[name])
    inputs = {i.name: (i.shape, i.type) for i in loaded.get_inputs()}
    assert inputs == {
        "input_img": ([1, 1382400], "tensor(uint8)"),
        "calib": ([1, 3], "tensor(float)"),
    }
    (output,) = loaded.get_outputs()
    assert (output.name, output.shape) == ("outputs", [1, row.width])
    props = {p.key: p.value for p in onnx.load_model_from_string(built[name].data).metadata_props}
    assert props["model_checkpoint"] == f"example-{name}/seed-0"
    assert ("output_slices" in props) == row.sliced
    if row.sliced:
        slices = pickle.loads(base64.b64decode(props["output_slices"]))
        assert {head: (s.start, s.stop) for head, s in slices.items()} == row.slices


@pytest.mark.parametrize("name", REVISIONS)
def test_every_head_depends_on_picture_and_angles(
    built: dict[str, ExampleModel], name: str
) -> None:
    loaded = session(built[name])
    base = picture(1)
    reference = loaded.run(None, base)[0][0]
    others = [picture(2), base | {"calib": np.array([[0.1, -0.1, 0.2]], np.float32)}]
    for other in others:
        difference = np.abs(loaded.run(None, other)[0][0] - reference)
        for head, (start, stop) in REVISIONS[name].model.slices.items():
            assert difference[start:stop].max() > 1e-5, head


@pytest.mark.parametrize("name", REVISIONS)
def test_somebody_sits_on_the_left(built: dict[str, ExampleModel], name: str) -> None:
    outputs = session(built[name]).run(None, picture(3))[0][0]
    slices = REVISIONS[name].model.slices
    logits = {head: outputs[start] for head, (start, _) in slices.items()}
    assert logits["face_prob_lhd"] > 1 > -1 > logits["face_prob_rhd"]
    assert logits["left_eye_prob_lhd"] > 0 > logits["left_blink_prob_lhd"]
    assert logits["wheel_on_right"] < 0
    start, stop = slices["face_descs_lhd"]
    assert np.abs(outputs[start : start + 6]).max() < 1.5
    assert np.exp(outputs[start + 6 : stop]).max() < 0.5


def test_the_command_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["make-model", str(tmp_path), "--interface", "dmonitoring-2026", "--seed", "3"]
    assert cli.main([*command, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert row["file"] == str(tmp_path / "dmonitoring.onnx")
    expected = build_driver_monitoring(REVISIONS["dmonitoring-2026"], 3)
    assert (tmp_path / "dmonitoring.onnx").read_bytes() == expected.data
    assert expected.data != build_driver_monitoring(REVISIONS["dmonitoring-2026"], 4).data
    assert cli.main(["make-model", "--list-interfaces", "--json"]) == 0
    assert set(REVISIONS) <= set(json.loads(capsys.readouterr().out)["interfaces"])
