"""Exported models say what the networks say, in metres, and this project's compiler takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

from modeld.constants import IDX_COUNT, PLAN_WIDTH
from tests.tools.training.with_torch.exported import Networks, as_trained, run
from tools import cli
from tools.example_models.interface import vision_slices
from tools.training.architecture import MIDDLE
from tools.training.export import (
    MOST_BYTES,
    MOST_FLOP,
    MOST_PARAMETERS,
    Trained,
    vision_model,
    write_models,
)
from tools.training.heads import (
    HIDDEN_WIDTH,
    HISTORY_ROWS,
    PLAN,
    VISION_HEADS,
    VISION_TARGETS,
    Singles,
)
from tools.training.networks import as_input
from tools.training.scaling import part_of


@pytest.fixture
def trained(networks: Networks) -> Trained:
    return as_trained(networks)


def close(found: Singles, wanted: Singles, scale: NDArray[Any]) -> None:
    """Compare within what weights of 11 bits may change, in units of the scaling."""
    error = np.abs(found - wanted) / scale
    assert error.max() < 2e-2
    assert np.sqrt((error**2).mean()) < 4e-3


def test_vision_says_what_the_network_says(
    tmp_path: Path, networks: Networks, trained: Trained
) -> None:
    vision, _, scaling = networks
    write_models(tmp_path, trained)
    rng = np.random.default_rng(0)
    images = np.clip(MIDDLE + 60 * rng.normal(size=(1, 2, 12, 128, 256)), 0, 255).astype(np.uint8)
    found = run(tmp_path / "vision.onnx", {"img": images[:, 0], "big_img": images[:, 1]})
    assert found.shape == (1, 1576)
    with torch.inference_mode():
        wanted = {name: x.numpy() for name, x in vision(as_input(torch.from_numpy(images))).items()}
    for head in VISION_HEADS:
        part, said = found[:, vision_slices()[head.name]], wanted[head.name]
        unit = part_of(VISION_TARGETS, scaling, (head,))
        if head.kind == "gaussian":
            means = said[:, : head.size] * unit.deviation + unit.mean
            logs = said[:, head.size :] + np.log(unit.deviation)
            close(part[:, : head.size], means, unit.deviation)
            close(part[:, head.size :], logs, np.ones_like(unit.deviation))
        else:
            close(part, said, unit.deviation)
    close(found[:, vision_slices()["hidden_state"]], wanted["hidden_state"], np.ones(1))


def test_policy_says_what_the_network_says(
    tmp_path: Path, networks: Networks, trained: Trained
) -> None:
    _, policy, scaling = networks
    write_models(tmp_path, trained)
    rng = np.random.default_rng(0)
    feeds = {
        "desire_pulse": np.zeros((1, HISTORY_ROWS, 8), np.float32),
        "traffic_convention": np.array([[1, 0]], np.float32),
        "features_buffer": rng.normal(size=(1, HISTORY_ROWS, HIDDEN_WIDTH)).astype(np.float32),
    }
    feeds["desire_pulse"][0, 9, 3] = 1.0
    found = run(tmp_path / "policy.onnx", feeds)
    assert found.shape == (1, 1000)
    with torch.inference_mode():
        said = policy(*(torch.from_numpy(value) for value in feeds.values()))
    unit = part_of(VISION_TARGETS, scaling, (PLAN,))
    plan = said["plan"].numpy()
    close(found[:, : PLAN.size], plan[:, : PLAN.size] * unit.deviation + unit.mean, unit.deviation)
    close(found[:, 990:998], said["desire_state"].numpy(), np.ones(1))
    assert found[0, 998:].tolist() == [0.0, 0.0]
    assert plan.shape == (1, 2 * IDX_COUNT * PLAN_WIDTH)


def test_models_are_small_and_equal_for_equal_weights(tmp_path: Path, trained: Trained) -> None:
    written = write_models(tmp_path / "a", trained)
    assert written.bytes <= MOST_BYTES
    assert written.parameters <= MOST_PARAMETERS
    assert written.flop <= MOST_FLOP
    write_models(tmp_path / "b", trained)
    for name in ("vision.onnx", "policy.onnx"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    model = onnx.load(tmp_path / "a" / "vision.onnx")
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert metadata["model_checkpoint"] == "modeld-train/test"


def test_weight_beyond_float16_is_refused(trained: Trained) -> None:
    weights = dict(trained.vision)
    weights["trunk.places.weight"] = weights["trunk.places.weight"] * 1e9
    broken = Trained("test", weights, trained.policy, trained.scaling)
    with pytest.raises(ValueError, match="a weight beyond float16"):
        vision_model(broken)


@pytest.mark.opencl
def test_compiler_takes_them_as_the_interface_they_are(
    tmp_path: Path, trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    write_models(tmp_path, trained)
    artifact = tmp_path / "driving.pkl"
    files = [str(tmp_path / name) for name in ("vision.onnx", "policy.onnx")]
    assert cli.main(["compile", *files, "-o", str(artifact)]) == 0
    said = capsys.readouterr().out
    assert cli.main(["inspect", str(artifact)]) == 0
    assert "interface: split-2025, known by the checkpoint 'modeld-train/test'" in said
    assert "split-2025" in capsys.readouterr().out
