"""The example models: equal bytes for equal seeds, the published interface, plausible numbers."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from tools import cli
from tools.example_models import BUILDERS, ExampleModel, build_example
from tools.example_models.interface import policy_slices, t_idxs, vision_slices, x_idxs
from tools.make_model import BENCHMARKS, MODELS

Array = NDArray[Any]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ExampleModel]:
    """What `make-model --benchmarks` writes and lists, in its order."""
    listing = io.StringIO()
    directory = tmp_path_factory.mktemp("models")
    with contextlib.redirect_stdout(listing):
        assert cli.main(["make-model", str(directory), "--benchmarks", "--json"]) == 0
    return {
        row["name"]: ExampleModel(
            row["name"],
            (directory / f"{row['name']}.onnx").read_bytes(),
            row["parameters"],
            round(row["gflop"] * 1e9),
        )
        for row in json.loads(listing.getvalue())["models"]
    }


@pytest.fixture(scope="module")
def examples(written: dict[str, ExampleModel]) -> dict[str, ExampleModel]:
    return {name: written[name] for name in MODELS}


@pytest.fixture(scope="module")
def benchmarks(written: dict[str, ExampleModel]) -> dict[str, ExampleModel]:
    return {name: written[name] for name in BENCHMARKS}


def run(example: ExampleModel, feeds: dict[str, Array]) -> Array:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    outputs: Array = ort.InferenceSession(example.data, options).run(None, feeds)[0]
    return outputs


def images(seed: int) -> dict[str, Array]:
    """Return blocky frames with some noise: smooth like a photograph, different like two scenes."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (2, 1, 12, 4, 8)).repeat(32, 3).repeat(32, 4)
    noisy = np.clip(blocks + rng.normal(0, 8, (2, 1, 12, 128, 256)), 0, 255).astype(np.uint8)
    return {"img": noisy[0], "big_img": noisy[1]}


def policy_inputs(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "desire_pulse": np.zeros((1, 25, 8), np.float32),
        "traffic_convention": np.array([[1, 0]], np.float32),
        "features_buffer": rng.standard_normal((1, 25, 512)).astype(np.float32),
    }


def test_command_names_the_builders_without_importing_them() -> None:
    assert tuple(BUILDERS) == MODELS + BENCHMARKS


@pytest.mark.slow
def test_another_process_writes_the_same_bytes(
    tmp_path: Path, examples: dict[str, ExampleModel]
) -> None:
    command = [sys.executable, "-m", "tools.cli", "make-model", str(tmp_path / "new"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    listed = json.loads(done.stdout)
    assert [row["name"] for row in listed["models"]] == list(examples)
    for row in listed["models"]:
        written = Path(row["file"]).read_bytes()
        example = examples[row["name"]]
        assert hashlib.sha256(written).digest() == hashlib.sha256(example.data).digest()
        assert row["parameters"] == example.parameters
        assert row["gflop"] == example.flops / 1e9


def test_another_seed_gives_other_weights(examples: dict[str, ExampleModel]) -> None:
    other = build_example("policy", seed=1)
    assert other.data != examples["policy"].data
    a, b = run(examples["policy"], policy_inputs(1)), run(other, policy_inputs(1))
    assert np.abs(a - b).max() > 0.1


def test_command_writes_one_model_and_lists_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["make-model", str(tmp_path), "--model", "policy", "--seed", "3"]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["policy.onnx"]
    out = capsys.readouterr().out
    assert out == f"{tmp_path}/policy.onnx  29.5 MB  7.37 M parameters  333.3 MFLOP\n"


def test_benchmarks_are_written_beside_the_driving_models(
    written: dict[str, ExampleModel],
) -> None:
    assert tuple(written) == MODELS + BENCHMARKS
    for name in ("resnet18", "unet"):
        assert written[name] == build_example(name)


@pytest.mark.parametrize(
    "arguments", [["--seed", "-1"], ["--model", "other"], ["--benchmarks", "--model", "unet"]]
)
def test_bad_arguments_are_usage_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert cli.main(["make-model", str(tmp_path / "new"), *arguments]) == 2
    assert "modeld: error: " in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_directory_that_is_a_file_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    assert cli.main(["make-model", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def test_sizes_are_those_of_the_2025_models(examples: dict[str, ExampleModel]) -> None:
    vision, policy = examples["vision"], examples["policy"]
    assert 7.5e6 < vision.parameters < 8.5e6
    assert 1.5e9 < vision.flops < 1.7e9
    assert 6.5e6 < policy.parameters < 7.5e6
    assert 0.30e9 < policy.flops < 0.36e9


@pytest.mark.parametrize(
    ("name", "published", "stem"),
    [
        ("resnet18", 11_689_512, 49 * 64),
        ("efficientnet_b2_elu", 9_109_994, 9 * 32),
        ("mobilenetv3_large", 5_483_032, 0),
    ],
)
def test_networks_have_the_parameters_of_the_published_ones(
    benchmarks: dict[str, ExampleModel], name: str, published: int, stem: int
) -> None:
    """Published: torchvision's tables, 3 input channels; `stem` is what a further channel adds.

    A batch-norm has two parameters per channel there; folded, one of them is left.
    """
    graph = onnx.load_model_from_string(benchmarks[name].data).graph
    normalised = sum(
        t.dims[0]
        for t in graph.initializer
        if t.name.endswith("bias") and not re.search(r"(^|\.)(se|fc|classifier)\.", t.name)
    )
    channels = graph.input[0].type.tensor_type.shape.dim[1].dim_value
    assert benchmarks[name].parameters == published - normalised + (channels - 3) * stem


def test_benchmarks_do_the_work_they_are_named_for(benchmarks: dict[str, ExampleModel]) -> None:
    large = benchmarks["vision_large"]
    assert 17.5e6 < large.parameters < 18.5e6
    assert 3.1e9 < large.flops < 3.3e9
    operators = {
        name: {node.op_type for node in onnx.load_model_from_string(model.data).graph.node}
        for name, model in benchmarks.items()
    }
    assert {"Softmax", "BatchNormalization"} <= operators["vision_large"]
    assert {"Elu", "Sigmoid"} <= operators["efficientnet_b2_elu"]
    assert {"HardSwish", "HardSigmoid", "Relu"} <= operators["mobilenetv3_large"]
    assert {"ConvTranspose", "MaxPool", "Concat"} <= operators["unet"]
    unet = onnx.load_model_from_string(benchmarks["unet"].data).graph
    shapes = [
        [d.dim_value for d in v.type.tensor_type.shape.dim] for v in (unet.input[0], unet.output[0])
    ]
    assert shapes == [[1, 3, 360, 640], [1, 5, 360, 640]]


@pytest.mark.parametrize("name", [*MODELS, *BENCHMARKS])
def test_docstring_states_the_size(name: str, written: dict[str, ExampleModel]) -> None:
    model = written[name]
    stated = f"{model.parameters / 1e6:.2f} M parameters  {model.flops / 1e9:.2f} GFLOP"
    document = sys.modules[BUILDERS[name].__module__].__doc__ or ""
    assert re.search(rf"^ +{name}  {re.escape(stated)}", document, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "inputs", "width"),
    [
        ("vision", {"img": [1, 12, 128, 256], "big_img": [1, 12, 128, 256]}, 1576),
        ("vision_large", {"img": [1, 12, 128, 256], "big_img": [1, 12, 128, 256]}, 1576),
        (
            "policy",
            {
                "desire_pulse": [1, 25, 8],
                "traffic_convention": [1, 2],
                "features_buffer": [1, 25, 512],
            },
            1000,
        ),
    ],
)
def test_interface(
    written: dict[str, ExampleModel],
    name: str,
    inputs: dict[str, list[int]],
    width: int,
) -> None:
    session = ort.InferenceSession(written[name].data)
    assert {i.name: i.shape for i in session.get_inputs()} == inputs
    kind = "tensor(uint8)" if name.startswith("vision") else "tensor(float)"
    assert {i.type for i in session.get_inputs()} == {kind}
    assert [(o.name, o.shape) for o in session.get_outputs()] == [("outputs", [1, width])]


def test_slices_are_the_published_ones(
    written: dict[str, ExampleModel],
) -> None:
    expected = {
        "vision": {
            "meta": (0, 55),
            "desire_pred": (55, 87),
            "pose": (87, 99),
            "wide_from_device_euler": (99, 105),
            "road_transform": (105, 117),
            "lane_lines": (117, 645),
            "lane_lines_prob": (645, 653),
            "road_edges": (653, 917),
            "lead": (917, 1061),
            "lead_prob": (1061, 1064),
            "hidden_state": (1064, 1576),
            "pad": (0, None),
        },
        "policy": {"plan": (0, 990), "desire_state": (990, 998), "pad": (-2, None)},
    }
    expected["vision_large"] = expected["vision"]
    for name, slices in expected.items():
        props = {
            p.key: p.value for p in onnx.load_model_from_string(written[name].data).metadata_props
        }
        found = pickle.loads(base64.b64decode(props["output_slices"]))
        assert {k: (v.start, v.stop) for k, v in found.items()} == slices
        assert props["model_checkpoint"] == f"example-{name}/seed-0"


def test_index_tables() -> None:
    assert t_idxs()[[0, 16, 32]].tolist() == [0.0, 2.5, 10.0]
    assert x_idxs()[[0, 8, 32]].tolist() == [0.0, 12.0, 192.0]


@pytest.mark.parametrize("name", ["vision", "vision_large"])
def test_vision_sees_a_plausible_road_that_depends_on_the_image(
    written: dict[str, ExampleModel], name: str
) -> None:
    model = written[name]
    outputs = np.concatenate([run(model, images(seed)) for seed in range(3)])
    part = {name: outputs[:, s] for name, s in vision_slices().items()}
    assert np.isfinite(outputs).all()
    lanes = part["lane_lines"].reshape(3, 2, 4, 33, 2)
    near = lanes[:, 0, :, 0]
    np.testing.assert_allclose(near[..., 0], np.tile([-5.4, -1.8, 1.8, 5.4], (3, 1)), atol=0.6)
    np.testing.assert_allclose(near[..., 1], 1.22, atol=0.3)
    assert (np.abs(lanes[:, 1]) < 3).all()  # log standard deviations
    edges = part["road_edges"].reshape(3, 2, 2, 33, 2)[:, 0, :, 0, 0]
    np.testing.assert_allclose(edges, np.tile([-7.0, 7.0], (3, 1)), atol=0.6)
    assert (part["lane_lines_prob"][:, [3, 5]] > 0.5).all()
    np.testing.assert_allclose(part["pose"][:, 0], 15.0, atol=1.5)
    np.testing.assert_allclose(part["hidden_state"].std(axis=1), 1.0, atol=0.3)
    # Another image is another answer, for every output.
    for output, values in part.items():
        assert np.ptp(values, axis=0).max() > 1e-3, output


def test_each_camera_and_each_frame_matters(examples: dict[str, ExampleModel]) -> None:
    base = images(5)
    reference = run(examples["vision"], base)
    for name in base:
        for channels in (slice(0, 6), slice(6, 12)):
            changed = {k: v.copy() for k, v in base.items()}
            changed[name][:, channels] = 255 - changed[name][:, channels]
            assert np.abs(run(examples["vision"], changed) - reference).max() > 0.01


def test_policy_plans_a_plausible_trajectory(examples: dict[str, ExampleModel]) -> None:
    outputs = run(examples["policy"], policy_inputs(1))[0]
    part = {name: outputs[s] for name, s in policy_slices().items()}
    plan, log_std = part["plan"].reshape(2, 33, 15)
    np.testing.assert_allclose(plan[:, 0], 15.0 * t_idxs(), atol=15.0)
    np.testing.assert_allclose(plan[:, 3], 15.0, atol=2.0)
    assert (np.diff(plan[:, 0]) > 0).all()
    assert (log_std > -1.1).all()
    assert (log_std < 0.1).all()
    assert part["desire_state"].argmax() == 0
    np.testing.assert_array_equal(part["pad"], [0.0, 0.0])


@pytest.mark.parametrize("name", ["desire_pulse", "traffic_convention", "features_buffer"])
def test_policy_reads_every_input(examples: dict[str, ExampleModel], name: str) -> None:
    base = policy_inputs(2)
    changed = base | {name: base[name][..., ::-1] + 0.5}
    difference = run(examples["policy"], base) - run(examples["policy"], changed)
    assert np.abs(difference).max() > 1e-3


def test_models_pass_the_strict_checker(
    written: dict[str, ExampleModel],
) -> None:
    for example in written.values():
        model = onnx.load_model_from_string(example.data)
        onnx.checker.check_model(model, full_check=True)
        assert [o.version for o in model.opset_import] == [17]
        names = [node.name for node in model.graph.node]
        assert len(set(names)) == len(names)
