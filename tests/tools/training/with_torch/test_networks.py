"""The networks in torch: their shapes, what they see, how they begin."""

from __future__ import annotations

import numpy as np
import torch

from tools.training.heads import HIDDEN_WIDTH, HISTORY_ROWS, POLICY_HEADS, VISION_TARGETS
from tools.training.networks import Policy, Vision, as_input, folded
from tools.training.policy_stage import begin_policy
from tools.training.scaling import Scaling

Networks = tuple[Vision, Policy, Scaling]


def histories(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    desires = torch.zeros(count, HISTORY_ROWS, 8)
    features = torch.randn(count, HISTORY_ROWS, HIDDEN_WIDTH, generator=generator)
    return [desires, torch.tensor([[1.0, 0.0]]).repeat(count, 1), features]


def test_every_head_has_its_width(networks: Networks) -> None:
    vision, policy, _ = networks
    with torch.inference_mode():
        found = vision(as_input(torch.zeros((2, 2, 12, 128, 256), dtype=torch.uint8)))
        said = policy(*histories(2))
    for head in VISION_TARGETS:
        assert found[head.name].shape == (2, head.width)
    assert found["hidden_state"].shape == (2, HIDDEN_WIDTH)
    assert {name: tuple(x.shape) for name, x in said.items()} == {
        head.name: (2, head.width) for head in POLICY_HEADS
    }


def test_both_views_and_both_frames_are_seen(networks: Networks) -> None:
    vision, _, _ = networks
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (1, 2, 12, 128, 256)).astype(np.uint8)
    variants = [images]
    for view in range(2):
        for frame in (slice(0, 6), slice(6, 12)):
            changed = images.copy()
            changed[:, view, frame] = 255 - changed[:, view, frame]
            variants.append(changed)
    with torch.inference_mode():
        found = vision.trunk(as_input(torch.from_numpy(np.concatenate(variants))))
    for index in range(1, len(variants)):
        assert (found[index] - found[0]).abs().mean() > 1e-3


def test_bytes_become_about_minus_two_to_two_and_stay_where_they_are() -> None:
    images = torch.zeros((2, 2, 12, 128, 256), dtype=torch.uint8)
    images[1, 0, 3, 5, 7] = 255
    for dtype in (torch.float32, torch.bfloat16):
        found = as_input(images, dtype)
        assert found.dtype == dtype
        assert found.shape == images.shape
        assert found[1, 0, 3, 5, 7].item() == 2.0
        assert found.eq(-2.0).sum().item() == images.numel() - 1
        # What convolutions read side by side.
        assert found.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)


def test_norms_are_taken_in_by_their_convolutions_and_the_network_stays_as_it_is(
    networks: Networks,
) -> None:
    vision, _, _ = networks
    generator = torch.Generator().manual_seed(2)
    before = {name: value.clone() for name, value in vision.state_dict().items()}
    images = torch.randint(0, 256, (2, 2, 12, 128, 256), generator=generator, dtype=torch.uint8)
    with torch.inference_mode():
        wanted, found = vision(as_input(images)), folded(vision)(as_input(images))
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-3)
    assert not any("norm" in name for name in folded(vision).trunk.steps.state_dict())
    assert all(value.equal(before[name]) for name, value in vision.state_dict().items())


def test_policy_begins_with_the_plan_of_the_vision() -> None:
    torch.manual_seed(0)
    vision = Vision()
    torch.nn.init.normal_(vision.plan.last.weight)
    desires, convention, features = histories(3)
    with torch.inference_mode():
        said = begin_policy(vision)(desires, convention, features)["plan"]
        assert torch.equal(said, vision.plan(features[:, -1]))


def test_policy_hears_of_every_row_what_vision_tells_of_the_car_ahead(networks: Networks) -> None:
    vision, _, _ = networks
    _, _, features = histories(2)
    with torch.inference_mode():
        heard = begin_policy(vision).lead(features)
        told = vision.heads["leads"](features)
    # Of the likeliest car, now: x, y, speed and acceleration; and how likely it is.
    torch.testing.assert_close(heard, told[..., [0, 1, 2, 3, 144]])


def test_what_vision_tells_does_not_learn(networks: Networks) -> None:
    vision, _, _ = networks
    policy = begin_policy(vision)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    policy(*histories(2))["plan"].sum().backward()
    torch.optim.SGD(policy.parameters(), 1.0).step()
    after = policy.state_dict()
    assert {name for name in after if after[name].equal(before[name])} >= {
        f"lead.{layer}.{part}" for layer in ("first", "last") for part in ("weight", "bias")
    }
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
