"""The networks in torch: shapes, what they see, how they begin, and what their optimizer does."""

from __future__ import annotations

import pytest
import torch

from tests.tools.training.with_torch.conftest import Networks, histories
from tools.simulator.training.heads import HISTORY_ROWS
from tools.simulator.training.networks.networks import Vision, as_input, folded
from tools.simulator.training.networks.optimizers import MOMENTUM, Muon, orthogonal, split
from tools.simulator.training.policy_stage import begin_policy


def noise(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    shape = (count, 2, 12, 128, 256)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def test_both_views_and_both_frames_are_seen(networks: Networks) -> None:
    variants = noise(1).repeat(5, 1, 1, 1, 1)
    for index, (view, first) in enumerate(((0, 0), (0, 6), (1, 0), (1, 6)), 1):
        part = variants[index, view, first : first + 6]
        part.copy_(255 - part)
    with torch.inference_mode():
        found = networks[0].trunk(as_input(variants))
    assert ((found[1:] - found[0]).abs().flatten(1).mean(1) > 1e-3).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_become_about_minus_two_to_two_and_stay_where_they_are(dtype: torch.dtype) -> None:
    images = torch.zeros((2, 2, 12, 128, 256), dtype=torch.uint8)
    images[1, 0, 3, 5, 7] = 255
    found = as_input(images, dtype)
    assert (found.dtype, found.shape) == (dtype, images.shape)
    assert found[1, 0, 3, 5, 7].item() == 2.0
    assert found.eq(-2.0).sum().item() == images.numel() - 1
    # What convolutions read side by side.
    assert found.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)


def test_norms_are_taken_in_by_their_convolutions_and_the_network_stays_as_it_is(
    networks: Networks,
) -> None:
    vision, _, _ = networks
    before = {name: value.clone() for name, value in vision.state_dict().items()}
    images = as_input(noise(2))
    with torch.inference_mode():
        wanted, found = vision(images), folded(vision)(images)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-3)
    assert not any("norm" in name for name in folded(vision).trunk.steps.state_dict())
    assert all(value.equal(before[name]) for name, value in vision.state_dict().items())


def test_policy_begins_with_the_plan_of_the_vision_and_hears_of_the_car_ahead(
    networks: Networks,
) -> None:
    torch.manual_seed(0)
    vision = Vision()
    torch.nn.init.normal_(vision.plan.last.weight)
    desires, convention, features = histories(3)
    with torch.inference_mode():
        said = begin_policy(vision)(desires, convention, features)["plan"]
        assert torch.equal(said, vision.plan(features[:, -1]))
        # Of the likeliest car in every row, now: x, y, speed and acceleration; how likely it is.
        heard = begin_policy(networks[0]).lead(features)
        told = networks[0].heads["leads"](features)
    torch.testing.assert_close(heard, told[..., [0, 1, 2, 3, 144]])


def test_what_vision_tells_does_not_learn(networks: Networks) -> None:
    policy = begin_policy(networks[0])
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    policy(*histories(2))["plan"].sum().backward()
    torch.optim.SGD(policy.parameters(), 1.0).step()
    after = policy.state_dict()
    kept = {f"lead.{layer}.{part}" for layer in ("first", "last") for part in ("weight", "bias")}
    assert {name for name in after if after[name].equal(before[name])} >= kept
    assert not after["plan.last.bias"].equal(before["plan.last.bias"])


def test_desires_and_every_row_reach_the_plan(networks: Networks) -> None:
    _, policy, _ = networks
    desires, convention, features = histories(1)
    with torch.inference_mode():
        before = policy(desires, convention, features)["plan"]
        for row in range(HISTORY_ROWS):
            asked, moved = desires.clone(), features.clone()
            asked[0, row, 3], moved[0, row] = 1.0, 0.0
            assert not torch.equal(policy(asked, convention, features)["plan"], before)
            assert not torch.equal(policy(desires, convention, moved)["plan"], before)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-4), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("shape", [(24, 24), (16, 200), (200, 16)])
def test_all_directions_become_about_as_long(
    shape: tuple[int, int], dtype: torch.dtype, atol: float
) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    # Lengths from 1 to 0.05, the directions as they were.
    matrix = u @ torch.diag(torch.linspace(1.0, 0.05, len(v))) @ v
    turned = orthogonal(matrix, dtype)
    assert turned.dtype == dtype
    lengths = (u.T @ turned.float() @ v.T).diagonal()
    assert 0.6 < float(lengths.min()) <= float(lengths.max()) < 1.3
    assert torch.allclose(orthogonal(3.0 * matrix, dtype), turned, atol=atol)
    # Nothing to learn changes nothing.
    assert not orthogonal(torch.zeros(8, 12)).any()


@pytest.mark.parametrize("shape", [(16, 40), (16, 8, 3, 3)])
def test_a_step_is_as_long_as_its_rate_says(shape: tuple[int, ...]) -> None:
    weight = torch.zeros(shape, requires_grad=True)
    weight.grad = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    Muon([weight], 0.01, 0.0).step()
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


def test_it_takes_the_hidden_layers_of_the_vision() -> None:
    network = Vision()
    hidden, others = split(network, "last")
    chosen = {id(weight) for weight in hidden}
    names = {name for name, weight in network.named_parameters() if id(weight) in chosen}
    assert len(hidden) + len(others) == len(list(network.parameters()))
    assert {"trunk.places.weight", "trunk.steps.0.conv.weight", "plan.first.weight"} <= names
    assert not names & {"plan.last.weight", "trunk.places.bias", "trunk.cells.row"}
    assert not any(".norm." in name for name in names)
