"""Models of 8 bits: rounded as by hand, exported as they are, nearer to their teacher by steps."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from modeld.constants import DESIRE_LENGTH
from tests.tools.training.with_torch.exported import Networks, as_trained, run
from tools import cli
from tools.example_models.interface import vision_slices
from tools.training import checkpoint
from tools.training.architecture import MIDDLE
from tools.training.export import write_models
from tools.training.following import Lesson, follow, following_loss
from tools.training.heads import (
    HIDDEN_WIDTH,
    HISTORY_ROWS,
    PLAN,
    POLICY_HEADS,
    VISION_HEADS,
    VISION_TARGETS,
)
from tools.training.networks import as_input
from tools.training.onnx_weights import EightBitGraph
from tools.training.options import ROUNDS, TrainingOptions
from tools.training.parts import ConvNorm
from tools.training.recipe import recipe_of
from tools.training.rounded_networks import call_rounded, fold_norms, round_weights, rounded
from tools.training.rounding import in_eight_bits
from tools.training.scaling import part_of

FILES = ("vision.onnx", "policy.onnx")


@pytest.fixture
def eight(networks: Networks) -> Networks:
    """Return the networks folded and rounded."""
    vision, policy, scaling = networks
    for network in (vision, policy):
        fold_norms(network)
        round_weights(network)
    return vision, policy, scaling


def pictures(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return np.clip(MIDDLE + 60 * rng.normal(size=(1, 2, 12, 128, 256)), 0, 255).astype(np.uint8)


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
    views = as_input(torch.from_numpy(pictures(0)))
    with torch.inference_mode():
        before = vision(views)["hidden_state"]
        folded = deepcopy(vision)
        fold_norms(folded)
        after = folded(views)["hidden_state"]
    torch.testing.assert_close(after, before, rtol=0, atol=1e-4)
    norms = [m.norm for m in folded.modules() if isinstance(m, ConvNorm)]
    assert norms
    assert all(torch.equal(n.weight, torch.ones_like(n.weight)) for n in norms)
    assert not any(n.weight.requires_grad for n in norms)


def test_vision_file_says_what_the_rounded_network_says(tmp_path: Path, eight: Networks) -> None:
    vision, _, scaling = eight
    write_models(tmp_path, as_trained(eight), EightBitGraph)
    images = pictures(0)
    found = run(tmp_path / "vision.onnx", {"img": images[:, 0], "big_img": images[:, 1]})
    with torch.inference_mode():
        said = vision(as_input(torch.from_numpy(images)))
    for head in VISION_HEADS:
        part, wanted = found[:, vision_slices()[head.name]], said[head.name].numpy()
        unit = part_of(VISION_TARGETS, scaling, (head,))
        means = wanted[:, : head.size] * unit.deviation + unit.mean
        np.testing.assert_allclose(
            part[:, : head.size] / unit.deviation, means / unit.deviation, rtol=0, atol=2e-3
        )
    hidden = found[:, vision_slices()["hidden_state"]]
    np.testing.assert_allclose(hidden, said["hidden_state"].numpy(), rtol=0, atol=2e-3)


def test_policy_file_says_what_the_rounded_network_says(tmp_path: Path, eight: Networks) -> None:
    _, policy, scaling = eight
    write_models(tmp_path, as_trained(eight), EightBitGraph)
    inputs = policy_inputs(1, torch.Generator().manual_seed(0))
    names = ("desire_pulse", "traffic_convention", "features_buffer")
    feeds = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
    found = run(tmp_path / "policy.onnx", feeds)
    with torch.inference_mode():
        plan = policy(*inputs)["plan"].numpy()[:, : PLAN.size]
    unit = part_of(VISION_TARGETS, scaling, (PLAN,))
    means = found[:, : PLAN.size] / unit.deviation - unit.mean / unit.deviation
    np.testing.assert_allclose(means, plan, rtol=0, atol=2e-3)


def test_files_are_half_as_large_and_their_matrices_are_int8(
    tmp_path: Path, networks: Networks, eight: Networks
) -> None:
    halves = write_models(tmp_path / "half", as_trained(networks))
    written = write_models(tmp_path / "eight", as_trained(eight), EightBitGraph)
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


@pytest.mark.opencl
def test_compiler_takes_them(tmp_path: Path, eight: Networks) -> None:
    write_models(tmp_path, as_trained(eight), EightBitGraph)
    files = [str(tmp_path / name) for name in FILES]
    assert cli.main(["compile", *files, "-o", str(tmp_path / "driving.pkl")]) == 0


def policy_inputs(count: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    pulses = torch.zeros(count, HISTORY_ROWS, DESIRE_LENGTH)
    convention = torch.tensor([[1.0, 0.0]]).expand(count, 2)
    # As of a network, values go with each other: what rounding did to one, others can make good.
    few = torch.randn((count, HISTORY_ROWS, 32), generator=generator)
    mixed = torch.randn((32, HIDDEN_WIDTH), generator=torch.Generator().manual_seed(9))
    features = few @ mixed / 32**0.5
    return pulses, convention, features


def test_student_follows_better_after_some_steps(networks: Networks) -> None:
    _, teacher, _ = networks
    student = deepcopy(teacher)
    fold_norms(student)
    inputs = policy_inputs(64, torch.Generator().manual_seed(1))

    def apart() -> float:
        with torch.inference_mode():
            return float(
                following_loss(POLICY_HEADS, call_rounded(student, *inputs), teacher(*inputs))[0]
            )

    before, generator = apart(), torch.Generator().manual_seed(2)
    losses: list[float] = []
    lesson = Lesson(teacher, POLICY_HEADS, lambda: policy_inputs(64, generator), 3.0, "policy")
    steps = follow(student, lesson, lambda _s, _n, loss, _p: losses.append(loss))
    assert steps == len(losses) > 1
    assert 0.0 < apart() < 0.9 * before


def test_no_finished_training_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", str(tmp_path), "--eight-bits", "0"]
    assert cli.main(command) == 1
    assert "expected the checkpoint of a training, found none" in capsys.readouterr().err
    checkpoint.save(tmp_path, {"rounds": [9], "options": recipe_of(TrainingOptions(tmp_path))})
    assert cli.main(command) == 1
    error = capsys.readouterr().err
    assert f"expected a finished training, found 1 of {ROUNDS} rounds of drives" in error
    assert error.count("\n") == 1
    assert cli.main([*command[:-1], "-1"]) == 2
    assert "--eight-bits: expected minutes, 0 or more, found -1.0" in capsys.readouterr().err
    assert cli.main([*command, "--resume"]) == 2
    assert "--eight-bits: expected no --resume" in capsys.readouterr().err
