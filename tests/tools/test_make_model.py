"""The example models: equal bytes for equal seeds, the published interface, plausible numbers."""

import base64
import contextlib
import hashlib
import inspect
import io
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from tests.scheduler.driving.edited_models import parts_of
from tests.support import golden as golden_text
from tests.tools.conftest import Modeld
from tools import cli
from tools.commands.make_model import BENCHMARKS, MODELS
from tools.example_models import BUILDERS, ExampleModel, build_example
from tools.example_models.outputs import policy_slices, t_idxs, vision_slices

# All of them are written; `tests/tools/example_models` has quick tests of single ones.
pytestmark = pytest.mark.slow

golden = golden_text.golden  # the fixture
Array = NDArray[Any]
Written = dict[str, ExampleModel]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
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
def test_another_process_writes_the_same_bytes(tmp_path: Path, written: Written) -> None:
    command = [sys.executable, "-m", "tools.cli", "make-model", str(tmp_path / "new"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    listed = json.loads(done.stdout)
    assert [row["name"] for row in listed["models"]] == list(MODELS)
    for row in listed["models"]:
        example = written[row["name"]]
        # Not in one line: pytest would print megabytes of difference.
        same = Path(row["file"]).read_bytes() == example.data
        assert same
        assert row["parameters"] == example.parameters
        assert row["gflop"] == example.flops / 1e9


def test_bytes_are_the_kept_ones(written: Written, golden: Callable[[str, str], None]) -> None:
    digests = {name: hashlib.sha256(made.data).hexdigest()[:12] for name, made in written.items()}
    golden("example_models", "".join(f"{name}  {digest}\n" for name, digest in digests.items()))


def test_command_writes_one_model_and_lists_it(tmp_path: Path, modeld: Modeld) -> None:
    out = modeld(0, "make-model", tmp_path, "--model", "policy", "--seed", "3").out
    assert [p.name for p in tmp_path.iterdir()] == ["policy.onnx"]
    assert out == f"{tmp_path}/policy.onnx  29.5 MB  7.37 M parameters  333.3 MFLOP\n"


def test_benchmarks_are_written_beside_the_driving_models(written: Written) -> None:
    assert tuple(written) == MODELS + BENCHMARKS
    for name in ("resnet18", "unet"):
        assert written[name] == build_example(name)


@pytest.mark.parametrize(
    ("name", "parameters", "flops"),
    [
        ("vision", (7.5e6, 8.5e6), (1.5e9, 1.7e9)),
        ("policy", (6.5e6, 7.5e6), (0.30e9, 0.36e9)),
        ("vision_large", (17.5e6, 18.5e6), (3.1e9, 3.3e9)),
    ],
)
def test_sizes_are_those_of_published_models(
    written: Written, name: str, parameters: tuple[float, float], flops: tuple[float, float]
) -> None:
    assert parameters[0] < written[name].parameters < parameters[1]
    assert flops[0] < written[name].flops < flops[1]


@pytest.mark.parametrize(
    ("name", "published", "stem"),
    [
        ("resnet18", 11_689_512, 49 * 64),
        ("efficientnet_b2_elu", 9_109_994, 9 * 32),
        ("mobilenetv3_large", 5_483_032, 0),
    ],
)
def test_networks_have_the_parameters_of_the_published_ones(
    written: Written, name: str, published: int, stem: int
) -> None:
    """Published: torchvision's tables, 3 input channels; `stem` is what a further channel adds.

    A batch-norm has two parameters per channel there; folded, one of them is left.
    """
    graph = onnx.load_model_from_string(written[name].data).graph
    normalised = sum(
        t.dims[0]
        for t in graph.initializer
        if t.name.endswith("bias") and not re.search(r"(^|\.)(se|fc|classifier)\.", t.name)
    )
    channels = graph.input[0].type.tensor_type.shape.dim[1].dim_value
    assert written[name].parameters == published - normalised + (channels - 3) * stem


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("fastvit", 3_996_040 - 1_824),  # channels of batch-norms that are folded here
        ("mobilevit", 5_578_632 - 6_128),
        ("swin", 28_288_354 + 138 * (49**2 - 13**2)),  # biases of 138 heads, out of their tables
        ("vit", 5_717_416),
        ("convnext", 3_695_520),
    ],
)
def test_networks_have_exactly_the_parameters_of_the_published_ones(
    written: Written, name: str, parameters: int
) -> None:
    """Published: as timm counts them, of FastViT in its inference form."""
    assert written[name].parameters == parameters


@pytest.mark.parametrize("name", [*MODELS, *BENCHMARKS])
def test_its_module_states_the_size(name: str, written: Written) -> None:
    model = written[name]
    stated = f"{model.parameters / 1e6:.2f} M parameters  {model.flops / 1e9:.2f} GFLOP"
    # In the docstring, or in the comment above the part of a module that builds several.
    source = inspect.getsource(sys.modules[BUILDERS[name].__module__])
    assert re.search(rf"^#? +{name}  {re.escape(stated)}", source, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "role", "pad"),
    [
        ("vision", "vision", (0, None)),
        ("vision_large", "vision", (0, None)),
        ("policy", "policy", (-2, None)),
    ],
)
def test_interface_and_slices_are_those_of_split_2025(
    written: Written, name: str, role: str, pad: tuple[int, int | None]
) -> None:
    part = parts_of("split-2025")[role]
    session = ort.InferenceSession(written[name].data)
    kinds = {"tensor(uint8)": "uint8", "tensor(float)": "float32"}
    inputs = {i.name: (tuple(i.shape), kinds[i.type]) for i in session.get_inputs()}
    assert inputs == part.inputs
    assert [(o.name, o.shape) for o in session.get_outputs()] == [("outputs", [1, part.width])]
    proto = onnx.load_model_from_string(written[name].data)
    props = {entry.key: entry.value for entry in proto.metadata_props}
    found = pickle.loads(base64.b64decode(props["output_slices"]))
    assert {k: (v.start, v.stop) for k, v in found.items()} == {**part.slices, "pad": pad}
    assert props["model_checkpoint"] == f"example-{name}/seed-0"


@pytest.mark.parametrize("name", ["vision", "vision_large"])
def test_vision_sees_a_plausible_road_that_depends_on_the_image(
    written: Written, name: str
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


def test_policy_plans_a_plausible_trajectory(written: Written) -> None:
    outputs = run(written["policy"], policy_inputs(1))[0]
    part = {name: outputs[s] for name, s in policy_slices().items()}
    plan, log_std = part["plan"].reshape(2, 33, 15)
    np.testing.assert_allclose(plan[:, 0], 15.0 * t_idxs(), atol=15.0)
    np.testing.assert_allclose(plan[:, 3], 15.0, atol=2.0)
    assert (np.diff(plan[:, 0]) > 0).all()
    assert (log_std > -1.1).all()
    assert (log_std < 0.1).all()
    assert part["desire_state"].argmax() == 0
    np.testing.assert_array_equal(part["pad"], [0.0, 0.0])


def test_models_pass_the_strict_checker(written: Written) -> None:
    for example in written.values():
        model = onnx.load_model_from_string(example.data)
        onnx.checker.check_model(model, full_check=True)
        assert [o.version for o in model.opset_import] == [17]
        names = [node.name for node in model.graph.node]
        assert len(set(names)) == len(names)
