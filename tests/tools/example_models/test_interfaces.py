"""An example of each revision: its names, shapes, types and slices; equal bytes for equal seeds."""

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

from scheduler.driving.derive import example_parts
from scheduler.driving.revisions import load_revisions
from tools import cli
from tools.example_models import ExampleModel, build_revision

REVISIONS = load_revisions()
MODELS = [(name, i) for name, r in REVISIONS.items() for i in range(len(r.models))]
IDS = [f"{name}-{REVISIONS[name].models[i].role}" for name, i in MODELS]
KINDS = {"tensor(uint8)": "uint8", "tensor(float16)": "float16", "tensor(float)": "float32"}

Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def built() -> dict[str, tuple[ExampleModel, ...]]:
    return {name: build_revision(revision) for name, revision in REVISIONS.items()}


def session(model: ExampleModel) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.data, options)


def inputs_of(loaded: ort.InferenceSession, seed: int) -> Arrays:
    """Noise: pixels in 0..255, anything else about one."""
    rng = np.random.default_rng(seed)
    found: Arrays = {}
    for item in loaded.get_inputs():
        pixels = item.shape[-2:] == [128, 256]
        values = rng.integers(0, 256, item.shape) if pixels else rng.normal(size=item.shape)
        found[item.name] = values.astype(KINDS[item.type])
    return found


def metadata_of(model: ExampleModel) -> dict[str, str]:
    return {p.key: p.value for p in onnx.load_model_from_string(model.data).metadata_props}


@pytest.mark.parametrize(("name", "index"), MODELS, ids=IDS)
def test_names_shapes_types_and_slices_are_those_of_the_revision(
    built: dict[str, tuple[ExampleModel, ...]], name: str, index: int
) -> None:
    model, part = built[name][index], example_parts(REVISIONS[name])[index]
    row = REVISIONS[name].models[index]
    loaded = session(model)
    inputs = {i.name: (tuple(i.shape), KINDS[i.type]) for i in loaded.get_inputs()}
    assert inputs == part.inputs
    outputs = {o.name: (tuple(o.shape), KINDS[o.type]) for o in loaded.get_outputs()}
    states = {f"next_{state}": part.inputs[state] for state in row.states}
    assert outputs == {"outputs": ((1, part.width), "float32")} | states
    assert list(outputs) == ["outputs", *states]
    properties = metadata_of(model)
    assert properties["model_checkpoint"] == f"example-{name}-{part.role}/seed-0"
    slices = pickle.loads(base64.b64decode(properties["output_slices"]))
    assert {k: (s.start, s.stop) for k, s in slices.items() if k != "pad"} == part.slices
    ends = {0: None, -1: slice(0, None)}.get(row.pad, slice(-row.pad, None))
    assert slices.get("pad") == ends
    assert model.name == part.role
    assert model.parameters < 2_000_000


@pytest.mark.parametrize(("name", "index"), MODELS, ids=IDS)
def test_every_head_depends_on_every_input(
    built: dict[str, tuple[ExampleModel, ...]], name: str, index: int
) -> None:
    part = example_parts(REVISIONS[name])[index]
    loaded = session(built[name][index])
    base = inputs_of(loaded, 1)
    reference = loaded.run(None, base)
    assert all(np.isfinite(value).all() for value in reference)
    for changed in base:
        other = base | {changed: np.flip(base[changed], axis=tuple(range(base[changed].ndim)))}
        answer = loaded.run(None, other)
        if "prev_feat" in changed:  # seen as soon as it has moved on to a sampled row
            assert any((a != b).any() for a, b in zip(answer, reference, strict=True))
            continue
        for head, (start, stop) in part.slices.items():
            difference = np.abs(answer[0] - reference[0])[0, start:stop]
            assert difference.max() > 1e-6, head


@pytest.mark.parametrize(("name", "index"), MODELS, ids=IDS)
def test_every_row_of_a_history_matters(
    built: dict[str, tuple[ExampleModel, ...]], name: str, index: int
) -> None:
    loaded = session(built[name][index])
    base = inputs_of(loaded, 2)
    if "prev_desired_curv" in base:
        base["prev_desired_curv"] *= 3e-4
    states = REVISIONS[name].models[index].states
    reference = loaded.run(None, base)[0]
    for changed, value in base.items():
        if value.ndim < 3 or value.shape[-2:] == (128, 256) or changed in states:
            continue
        differences = set()
        for row in (0, value.shape[1] // 2, value.shape[1] - 1):
            other = value.copy()
            other[:, row] += 1.0 if changed != "prev_desired_curv" else 3e-4
            answer = loaded.run(None, base | {changed: other})[0]
            differences.add(float(np.abs(answer - reference).max()))
        assert min(differences) > 1e-5, changed
        assert len(differences) == 3, changed


@pytest.mark.parametrize(
    ("name", "index"), [(n, i) for n, i in MODELS if REVISIONS[n].models[i].states]
)
def test_states_move_on_and_are_sampled_as_a_host_would(
    built: dict[str, tuple[ExampleModel, ...]], name: str, index: int
) -> None:
    loaded = session(built[name][index])
    given = inputs_of(loaded, 4)
    names = [o.name for o in loaded.get_outputs()]
    found = dict(zip(names, loaded.run(None, given), strict=True))
    start, stop = example_parts(REVISIONS[name])[index].slices["hidden_state"]
    frames = next(given[n] for n in ("warped", "new_img") if n in given)
    newest = {
        "state_img_q": frames[:1],
        "state_big_img_q": frames[1:],
        "state_desire_q": given["desire"].reshape(1, 1, 8),
        "state_feat_q": given["state_prev_feat"].reshape(1, 1, 512),
    }
    queues = {n: np.concatenate([given[n][1:], row]) for n, row in newest.items()}
    for queue, expected in queues.items():
        np.testing.assert_array_equal(found[f"next_{queue}"], expected)
    np.testing.assert_array_equal(found["next_state_prev_feat"], found["outputs"][:, start:stop])
    # Weights of equal names are equal, so the revision without histories inside says the same.
    plain = session(built["supercombo-2026"][0])
    given |= {
        "img": queues["state_img_q"][::4].reshape(1, 12, 128, 256),
        "big_img": queues["state_big_img_q"][::4].reshape(1, 12, 128, 256),
        "desire_pulse": queues["state_desire_q"].reshape(25, 4, 8).max(1)[None],
        "features_buffer": queues["state_feat_q"][::4].reshape(1, 24, 512),
    }
    expected = plain.run(None, {i.name: given[i.name] for i in plain.get_inputs()})[0]
    np.testing.assert_allclose(found["outputs"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", REVISIONS)
def test_equal_seeds_give_equal_bytes(
    built: dict[str, tuple[ExampleModel, ...]], name: str
) -> None:
    assert build_revision(REVISIONS[name]) == built[name]
    for model, other in zip(built[name], build_revision(REVISIONS[name], 1), strict=True):
        assert model.data != other.data
        feeds = inputs_of(session(model), 3)
        a, b = (session(m).run(None, feeds)[0] for m in (model, other))
        assert np.abs(a - b).max() > 0.01


def test_command_writes_one_file_for_each_role(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "models"
    command = ["make-model", str(directory), "--interface", "split-2025", "--seed", "4", "--json"]
    assert cli.main(command) == 0
    listed = json.loads(capsys.readouterr().out)
    expected = build_revision(REVISIONS["split-2025"], 4)
    assert [row["name"] for row in listed["models"]] == ["vision", "policy"]
    assert sorted(p.name for p in directory.iterdir()) == ["policy.onnx", "vision.onnx"]
    for row, model in zip(listed["models"], expected, strict=True):
        assert Path(row["file"]).read_bytes() == model.data
        assert row["parameters"] == model.parameters


def test_interfaces_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["make-model", "--list-interfaces", "--json"]) == 0
    names = json.loads(capsys.readouterr().out)["interfaces"]
    assert [name for name in names if name in REVISIONS] == list(REVISIONS)
    assert cli.main(["make-model", "--list-interfaces"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert list(lines) == names
    for name, revision in REVISIONS.items():
        assert revision.title in lines[name]
        assert revision.since in lines[name]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--interface", "split-2024"], "found 'split-2024'; did you mean 'split-2025'?"),
        (["--interface", "split-2025", "--seed", "-1"], "--seed: expected 0 or more, found -1"),
        (
            ["--interface", "split-2025", "--benchmarks"],
            "expected neither --model nor --benchmarks",
        ),
    ],
)
def test_bad_arguments_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert cli.main(["make-model", str(tmp_path / "new"), *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_directory_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["make-model"]) == 2
    assert "DIR: missing" in capsys.readouterr().err
