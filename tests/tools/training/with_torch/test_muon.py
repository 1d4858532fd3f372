"""The optimizer for matrices: what it makes of a gradient, how far it goes, what it takes."""

from __future__ import annotations

import math

import pytest
import torch

from tools.training.muon import MOMENTUM, Muon, orthogonal, split
from tools.training.networks import Vision


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(24, 24), (16, 200), (200, 16)])
def test_all_directions_become_about_as_long(shape: tuple[int, int], dtype: torch.dtype) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    # Lengths from 1 to 0.05, the directions as they were.
    matrix = u @ torch.diag(torch.linspace(1.0, 0.05, len(v))) @ v
    turned = orthogonal(matrix, dtype)
    assert turned.dtype == dtype
    lengths = (u.T @ turned.float() @ v.T).diagonal()
    assert float(lengths.min()) > 0.6
    assert float(lengths.max()) < 1.3
    larger = orthogonal(3.0 * matrix, dtype)
    assert torch.allclose(larger, turned, atol=1e-4 if dtype == torch.float32 else 0.03)


def test_nothing_to_learn_changes_nothing() -> None:
    assert not orthogonal(torch.zeros(8, 12)).any()


@pytest.mark.parametrize("shape", [(16, 40), (16, 8, 3, 3)])
def test_a_step_is_as_long_as_its_rate_says(shape: tuple[int, ...]) -> None:
    weight = torch.zeros(shape, requires_grad=True)
    optimizer = Muon([weight], 0.01, 0.0)
    weight.grad = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    # 16 directions of about 1 in 16 * n values: a root mean square of 1 / sqrt(n), times
    # 0.6 sqrt(n), times the rate.
    size = float(weight.detach().square().mean().sqrt())
    assert size == pytest.approx(0.01 * 0.6, rel=0.25)
    assert float((weight.detach() * weight.grad).sum()) < 0.0


def test_weights_decay_and_gradients_are_remembered() -> None:
    weight = torch.ones(8, 8, requires_grad=True)
    optimizer = Muon([weight], 0.1, 0.5)
    weight.grad = torch.zeros(8, 8)
    optimizer.step()
    assert torch.allclose(weight.detach(), torch.full((8, 8), 0.95))
    weight.grad = torch.eye(8)
    optimizer.step()
    kept = optimizer.state[weight]["mean"]
    assert torch.allclose(kept, (1.0 - MOMENTUM) * torch.eye(8))
    with pytest.raises(ValueError, match="closure"):
        optimizer.step(lambda: 0.0)


def test_it_solves_what_it_is_given() -> None:
    generator = torch.Generator().manual_seed(2)
    wanted = torch.randn(12, 20, generator=generator)
    weight = torch.zeros(12, 20, requires_grad=True)
    optimizer = Muon([weight], 0.02, 0.0)
    for step in range(200):
        optimizer.param_groups[0]["lr"] = 0.2 * (1.0 - step / 200)
        inputs = torch.randn(64, 20, generator=generator)
        loss = (inputs @ (weight - wanted).T).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    error = float((weight.detach() - wanted).square().mean())
    assert math.isfinite(error)
    assert error < 0.01


def test_it_takes_the_hidden_layers_of_the_vision() -> None:
    network = Vision()
    hidden, others = split(network, "last")
    chosen = {id(weight) for weight in hidden}
    names = {name for name, weight in network.named_parameters() if id(weight) in chosen}
    assert len(hidden) + len(others) == len(list(network.parameters()))
    assert {"trunk.places.weight", "trunk.steps.0.conv.weight", "plan.first.weight"} <= names
    assert not names & {"plan.last.weight", "trunk.places.bias", "trunk.cells.row"}
    assert not any(".norm." in name for name in names)
