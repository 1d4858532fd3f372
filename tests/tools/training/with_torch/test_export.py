"""Exported models say what the networks say, in metres, are small, and this compiler takes them."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from modeld.constants import IDX_COUNT, PLAN_WIDTH
from tests.tools.conftest import Modeld
from tests.tools.training.with_torch.conftest import Networks, as_trained, histories
from tools.errors import TrainingError
from tools.example_models.outputs import vision_slices
from tools.simulator.training import checkpoint, model_files
from tools.simulator.training.heads import PLAN, VISION_HEADS, VISION_TARGETS, Singles, part_of
from tools.simulator.training.model_files import Trained, Written, vision_model, write_models
from tools.simulator.training.networks.architecture import MIDDLE, in_eight_bits
from tools.simulator.training.networks.networks import as_input
from tools.simulator.training.networks.parts import ConvNorm, fold_norms, round_weights, rounded
from tools.simulator.training.onnx_graphs import EightBitGraph, WeightedGraph
from tools.simulator.training.options import TrainingOptions
from tools.simulator.training.training import Training, check_sizes

FILES = ("vision.onnx", "policy.onnx")
# What weights of 11 bits may change, in units of the scaling: the most, and the root mean square.
# Rounded networks are written as they are.
GRAPHS = {"float16": (WeightedGraph, 2e-2, 4e-3), "int8": (EightBitGraph, 2e-3, 2e-3)}


def pictures() -> Any:
    rng = np.random.default_rng(0)
    return np.clip(MIDDLE + 60 * rng.normal(size=(1, 2, 12, 128, 256)), 0, 255).astype(np.uint8)


class Exported:
    """Networks and the files made of them."""

    def __init__(self, stored: str, networks: Networks, directory: Path) -> None:
        self.vision, self.policy, self.scaling = networks
        self.graph, self._most, self._mean = GRAPHS[stored]
        if stored == "int8":
            for network in (self.vision, self.policy):
                fold_norms(network)
                round_weights(network)
        self.trained, self.directory = as_trained(networks), directory

    def write(self, folder: str = "models") -> Written:
        return write_models(self.directory / folder, self.trained, self.graph)

    def run(self, name: str, feeds: dict[str, Any]) -> Singles:
        self.write()
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        session = ort.InferenceSession(self.directory / "models" / name, options)
        return np.asarray(session.run(None, feeds)[0])

    def close(self, found: Singles, wanted: Singles, scale: Any = 1.0) -> None:
        error = np.abs(found - wanted) / scale
        assert error.max() < self._most
        assert np.sqrt((error**2).mean()) < self._mean


@pytest.fixture(params=GRAPHS)
def exported(request: pytest.FixtureRequest, networks: Networks, tmp_path: Path) -> Exported:
    return Exported(request.param, networks, tmp_path)


@pytest.fixture
def trained(networks: Networks) -> Trained:
    return as_trained(networks)


def test_vision_says_what_the_network_says(exported: Exported) -> None:
    images = pictures()
    found = exported.run("vision.onnx", {"img": images[:, 0], "big_img": images[:, 1]})
    assert found.shape == (1, 1576)
    with torch.inference_mode():
        outputs = exported.vision(as_input(torch.from_numpy(images)))
    for head in VISION_HEADS:
        part, said = found[:, vision_slices()[head.name]], outputs[head.name].numpy()
        unit = part_of(VISION_TARGETS, exported.scaling, (head,))
        if head.kind == "gaussian":
            means = said[:, : head.size] * unit.deviation + unit.mean
            exported.close(part[:, : head.size], means, unit.deviation)
            exported.close(part[:, head.size :], said[:, head.size :] + np.log(unit.deviation))
        else:
            exported.close(part, said, unit.deviation)
    exported.close(found[:, vision_slices()["hidden_state"]], outputs["hidden_state"].numpy())


def test_policy_says_what_the_network_says(exported: Exported) -> None:
    desires, convention, features = histories(1)
    desires[0, 9, 3] = 1.0
    with torch.inference_mode():
        said = exported.policy(desires, convention, features)
    names = ("desire_pulse", "traffic_convention", "features_buffer")
    feeds = {n: x.numpy() for n, x in zip(names, (desires, convention, features), strict=True)}
    found = exported.run("policy.onnx", feeds)
    assert found.shape == (1, 1000)
    unit, plan = part_of(VISION_TARGETS, exported.scaling, (PLAN,)), said["plan"].numpy()
    assert plan.shape == (1, 2 * IDX_COUNT * PLAN_WIDTH)
    means = plan[:, : PLAN.size] * unit.deviation + unit.mean
    exported.close(found[:, : PLAN.size], means, unit.deviation)
    exported.close(found[:, 990:998], said["desire_state"].numpy())
    assert found[0, 998:].tolist() == [0.0, 0.0]


def test_models_are_small_known_before_and_equal_for_equal_weights(exported: Exported) -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    known = check_sizes()
    # Draws are those that they would have been.
    assert torch.equal(torch.random.get_rng_state(), before)
    written = exported.write("a")
    for one in (known, written):
        assert one.parameters <= model_files.MOST_PARAMETERS
        assert one.flop <= model_files.MOST_FLOP
        assert one.bytes <= model_files.MOST_BYTES
    assert known.parameters == written.parameters
    if exported.graph is WeightedGraph:
        assert known.flop == written.flop
        # Only the name of the training differs.
        assert abs(known.bytes - written.bytes) < 100
    exported.write("b")
    for name in FILES:
        same = {(exported.directory / folder / name).read_bytes() for folder in "ab"}
        assert len(same) == 1
    model = onnx.load(exported.directory / "a" / "vision.onnx")
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert metadata["model_checkpoint"] == "modeld-train/test"


def test_weight_beyond_float16_is_refused(trained: Trained) -> None:
    weights = dict(trained.vision)
    weights["trunk.places.weight"] = weights["trunk.places.weight"] * 1e9
    with pytest.raises(ValueError, match="a weight beyond float16"):
        vision_model(Trained("test", weights, trained.policy, trained.scaling))


@pytest.mark.opencl
def test_compiler_takes_them_as_the_interface_they_are(exported: Exported, modeld: Modeld) -> None:
    exported.write()
    artifact = exported.directory / "driving.pkl"
    files = [exported.directory / "models" / name for name in FILES]
    said = modeld(0, "compile", *files, "-o", artifact).out
    assert "interface: split-2025, known by the checkpoint 'modeld-train/test'" in said
    assert "split-2025" in modeld(0, "inspect", artifact).out


@pytest.mark.parametrize(
    ("limit", "found"),
    [
        ("MOST_PARAMETERS", "at most 1000 parameters, found"),
        ("MOST_FLOP", "at most 1000 floating-point operations a frame, found"),
        ("MOST_BYTES", "at most 1000 bytes of both files, found"),
    ],
)
def test_what_is_too_large_is_refused_before_anything_is_written(
    limit: str, found: str, tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_files, limit, 1000)
    with pytest.raises(TrainingError, match=found) as caught:
        write_models(tmp_path / "models", trained)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "models").exists()
    directory = tmp_path / "training"
    with pytest.raises(TrainingError, match=found):
        Training(TrainingOptions(directory), resume=False, show=False)
    assert not (directory / checkpoint.NAME).exists()
    assert not directory.exists()


def test_rounding_is_that_of_the_export_and_lets_gradients_pass() -> None:
    torch.manual_seed(0)
    for shape in ((16, 8, 3, 3), (40, 24)):
        weight = torch.randn(shape, requires_grad=True)
        value = rounded(weight)
        numbers, scale = in_eight_bits(weight.detach().numpy())
        wanted = numbers * scale.reshape(-1, *[1] * (len(shape) - 1))
        np.testing.assert_allclose(value.detach().numpy(), wanted, rtol=0, atol=1e-6)
        (value * torch.arange(shape[-1])).sum().backward()
        assert weight.grad is not None
        assert torch.equal(weight.grad, torch.arange(shape[-1]).expand(shape).float())


def test_folded_networks_say_the_same(networks: Networks) -> None:
    vision, _, _ = networks
    views, folded = as_input(torch.from_numpy(pictures())), deepcopy(vision)
    fold_norms(folded)
    with torch.inference_mode():
        before, after = (network(views)["hidden_state"] for network in (vision, folded))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-4)
    norms = [m.norm for m in folded.modules() if isinstance(m, ConvNorm)]
    assert norms
    assert all(torch.equal(n.weight, torch.ones_like(n.weight)) for n in norms)
    assert not any(n.weight.requires_grad for n in norms)


def test_files_of_8_bits_are_half_as_large_and_their_matrices_are_int8(
    tmp_path: Path, networks: Networks
) -> None:
    halves = write_models(tmp_path / "half", as_trained(networks))
    written = Exported("int8", networks, tmp_path).write("eight")
    assert (halves.stored, written.stored) == ("float16", "int8")
    assert written.bytes < 0.55 * halves.bytes
    for name in FILES:
        model = onnx.load(tmp_path / "eight" / name)
        onnx.checker.check_model(model, full_check=True)
        kinds = {i.name: i.data_type for i in model.graph.initializer}
        widened = [n.input[0] for n in model.graph.node if n.op_type == "DequantizeLinear"]
        large = [i.name for i in model.graph.initializer if np.prod(i.dims) > 8192]
        assert widened
        assert {kinds[n] for n in widened} == {onnx.TensorProto.INT8}
        assert set(large) <= set(widened)
        assert onnx.TensorProto.FLOAT16 not in kinds.values()
