"""An example of each revision: names, shapes, types, slices and heads; equal bytes for seeds."""

import base64
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from scheduler.driving.derive import example_parts
from scheduler.driving.revisions import load_monitoring, load_revisions
from tests.support.selection import quick_cases
from tests.tools.conftest import Modeld
from tools.example_models import ExampleModel, build_driver_monitoring, build_revision

REVISIONS, MONITORING = load_revisions(), load_monitoring()
MODELS = [(name, i) for name, r in REVISIONS.items() for i in range(len(r.models))]
IDS = [f"{name}-{REVISIONS[name].models[i].role}" for name, i in MODELS]
KINDS = {"tensor(uint8)": "uint8", "tensor(float16)": "float16", "tensor(float)": "float32"}

Arrays = dict[str, NDArray[Any]]
Built = dict[str, tuple[ExampleModel, ...]]


@pytest.fixture(scope="module")
def built() -> Built:
    monitoring = {name: (build_driver_monitoring(one),) for name, one in MONITORING.items()}
    return {name: build_revision(one) for name, one in REVISIONS.items()} | monitoring


def session(model: ExampleModel) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.data, options)


def declared(values: list[Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {value.name: (tuple(value.shape), KINDS[value.type]) for value in values}


def inputs_of(loaded: ort.InferenceSession, seed: int) -> Arrays:
    """Noise: pixels in 0..255, anything else about one."""
    rng = np.random.default_rng(seed)
    found: Arrays = {}
    for name, (shape, kind) in declared(loaded.get_inputs()).items():
        pixels = shape[-2:] == (128, 256)
        values = rng.integers(0, 256, shape) if pixels else rng.normal(size=shape)
        found[name] = values.astype(kind)
    return found


def properties_of(model: ExampleModel) -> tuple[dict[str, str], dict[str, slice]]:
    """Return the metadata, and the slices of outputs among them."""
    proto = onnx.load_model_from_string(model.data)
    properties = {entry.key: entry.value for entry in proto.metadata_props}
    slices = properties.get("output_slices")
    return properties, pickle.loads(base64.b64decode(slices)) if slices else {}


each_model = pytest.mark.parametrize(("name", "index"), MODELS, ids=IDS)


@each_model
def test_names_shapes_types_and_slices_are_those_of_the_revision(
    built: Built, name: str, index: int
) -> None:
    model, part = built[name][index], example_parts(REVISIONS[name])[index]
    row, loaded = REVISIONS[name].models[index], session(model)
    assert declared(loaded.get_inputs()) == part.inputs
    outputs = declared(loaded.get_outputs())
    states = {f"next_{state}": part.inputs[state] for state in row.states}
    assert outputs == {"outputs": ((1, part.width), "float32")} | states
    assert list(outputs) == ["outputs", *states]
    properties, slices = properties_of(model)
    assert properties["model_checkpoint"] == f"example-{name}-{part.role}/seed-0"
    assert {k: (s.start, s.stop) for k, s in slices.items() if k != "pad"} == part.slices
    ends = {0: None, -1: slice(0, None)}.get(row.pad, slice(-row.pad, None))
    assert slices.get("pad") == ends
    assert model.name == part.role
    assert model.parameters < 2_000_000


@each_model
def test_every_head_depends_on_every_input(built: Built, name: str, index: int) -> None:
    part, loaded = example_parts(REVISIONS[name])[index], session(built[name][index])
    base = inputs_of(loaded, 1)
    reference = loaded.run(None, base)
    assert all(np.isfinite(value).all() for value in reference)
    for changed in base:
        other = base | {changed: np.flip(base[changed], axis=tuple(range(base[changed].ndim)))}
        answer = loaded.run(None, other)
        if "prev_feat" in changed:  # seen as soon as it has moved on to a sampled row
            assert any((a != b).any() for a, b in zip(answer, reference, strict=True))
            continue
        difference = np.abs(answer[0] - reference[0])[0]
        for head, (start, stop) in part.slices.items():
            assert difference[start:stop].max() > 1e-6, head


@each_model
def test_every_row_of_a_history_matters(built: Built, name: str, index: int) -> None:
    loaded = session(built[name][index])
    base = inputs_of(loaded, 2)
    units = dict.fromkeys(base, 1.0) | {"prev_desired_curv": 3e-4}
    base |= {key: units[key] * value for key, value in base.items() if units[key] < 1.0}
    reference = loaded.run(None, base)[0]
    for changed, value in base.items():
        is_history = value.ndim >= 3 and value.shape[-2:] != (128, 256)
        if not is_history or changed in REVISIONS[name].models[index].states:
            continue
        differences = set()
        for row in (0, value.shape[1] // 2, value.shape[1] - 1):
            other = value.copy()
            other[:, row] += units[changed]
            answer = loaded.run(None, base | {changed: other})[0]
            differences.add(float(np.abs(answer - reference).max()))
        assert min(differences) > 1e-5, changed
        assert len(differences) == 3, changed


@pytest.mark.parametrize(
    ("name", "index"), [(n, i) for n, i in MODELS if REVISIONS[n].models[i].states]
)
def test_states_move_on_and_are_sampled_as_a_host_would(
    built: Built, name: str, index: int
) -> None:
    loaded = session(built[name][index])
    given = inputs_of(loaded, 4)
    found = dict(zip(declared(loaded.get_outputs()), loaded.run(None, given), strict=True))
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


@pytest.mark.parametrize(
    "name", quick_cases(REVISIONS, "supercombo-0.9.7", "split-2025", "on-off-2026")
)
def test_equal_seeds_give_equal_bytes(built: Built, name: str) -> None:
    assert build_revision(REVISIONS[name]) == built[name]
    for model, other in zip(built[name], build_revision(REVISIONS[name], 1), strict=True):
        assert model.data != other.data
        feeds = inputs_of(session(model), 3)
        a, b = (session(m).run(None, feeds)[0] for m in (model, other))
        assert np.abs(a - b).max() > 0.01


def picture(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (30, 45)).repeat(32, 0).repeat(32, 1)
    noisy = np.clip(blocks + rng.normal(0, 8, blocks.shape), 0, 255).astype(np.uint8)
    return {"input_img": noisy.reshape(1, -1), "calib": np.zeros((1, 3), np.float32)}


@pytest.mark.parametrize("name", MONITORING)
def test_monitoring_is_that_of_its_revision_and_sees_a_driver(built: Built, name: str) -> None:
    row, (model,) = MONITORING[name].model, built[name]
    loaded = session(model)
    inputs = {"input_img": ((1, 1382400), "uint8"), "calib": ((1, 3), "float32")}
    assert declared(loaded.get_inputs()) == inputs
    assert declared(loaded.get_outputs()) == {"outputs": ((1, row.width), "float32")}
    properties, slices = properties_of(model)
    assert properties["model_checkpoint"] == f"example-{name}/seed-0"
    found = {head: (s.start, s.stop) for head, s in slices.items()}
    assert found == (row.slices if row.sliced else {})
    # Every head depends on picture and angles.
    base = picture(1)
    reference = loaded.run(None, base)[0][0]
    for other in (picture(2), base | {"calib": np.array([[0.1, -0.1, 0.2]], np.float32)}):
        difference = np.abs(loaded.run(None, other)[0][0] - reference)
        for head, (start, stop) in row.slices.items():
            assert difference[start:stop].max() > 1e-5, head
    # Somebody sits on the left.
    outputs = loaded.run(None, picture(3))[0][0]
    logits = {head: outputs[start] for head, (start, _) in row.slices.items()}
    assert logits["face_prob_lhd"] > 1 > -1 > logits["face_prob_rhd"]
    assert logits["left_eye_prob_lhd"] > 0 > logits["left_blink_prob_lhd"]
    assert logits["wheel_on_right"] < 0
    start, stop = row.slices["face_descs_lhd"]
    assert np.abs(outputs[start : start + 6]).max() < 1.5
    assert np.exp(outputs[start + 6 : stop]).max() < 0.5


@pytest.mark.parametrize(
    ("interface", "roles"),
    [("split-2025", ["vision", "policy"]), ("dmonitoring-2026", ["dmonitoring"])],
)
def test_command_writes_one_file_for_each_role(
    built: Built, tmp_path: Path, modeld: Modeld, interface: str, roles: list[str]
) -> None:
    directory = tmp_path / "models"
    command = ["make-model", directory, "--interface", interface, "--seed", 4, "--json"]
    rows = modeld(0, *command).json["models"]
    assert [row["name"] for row in rows] == roles
    assert [row["file"] for row in rows] == [str(directory / f"{role}.onnx") for role in roles]
    assert sorted(path.stem for path in directory.iterdir()) == sorted(roles)
    if interface in MONITORING:
        models: tuple[ExampleModel, ...] = (build_driver_monitoring(MONITORING[interface], 4),)
    else:
        models = build_revision(REVISIONS[interface], 4)
    for row, model, other in zip(rows, models, built[interface], strict=True):
        assert Path(row["file"]).read_bytes() == model.data
        # The metadata tell the seed; weights differ, too.
        graphs = [onnx.load_model_from_string(one.data).graph for one in (model, other)]
        assert graphs[0] != graphs[1]
        assert row["parameters"] == model.parameters


def test_interfaces_are_listed(modeld: Modeld) -> None:
    names = modeld(0, "make-model", "--list-interfaces", "--json").json["interfaces"]
    assert [name for name in names if name in REVISIONS] == list(REVISIONS)
    assert set(MONITORING) <= set(names)
    said = modeld(0, "make-model", "--list-interfaces").out
    lines = {line.split()[0]: line for line in said.splitlines()}
    assert list(lines) == names
    for name, revision in REVISIONS.items():
        assert revision.title in lines[name]
        assert revision.since in lines[name]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("{} --interface split-2024", "found 'split-2024'; did you mean 'split-2025'?"),
        ("{} --interface split-2025 --benchmarks", "expected neither --model nor --benchmarks"),
        ("", "DIR: missing"),
    ],
)
def test_bad_arguments_are_one_line(
    tmp_path: Path, modeld: Modeld, arguments: str, said: str
) -> None:
    modeld.refused(2, said, "make-model", *arguments.format(tmp_path / "new").split())
    assert not (tmp_path / "new").exists()
