"""The first stage learns, its state goes on from a checkpoint, and a damaged one is told."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from tools.errors import TrainingError
from tools.training import checkpoint
from tools.training.heads import VISION_TARGETS, places_in_target, size_of
from tools.training.options import TrainingOptions
from tools.training.replay import Batch
from tools.training.scaling import measure
from tools.training.sweep import HEIGHT_M
from tools.training.vision_stage import (
    VisionState,
    begin,
    disturbed,
    learning_rate,
    mirror_some,
    restore_state,
    save_state,
    step,
)

SIZE = size_of(VISION_TARGETS)


def toy_batch(rng: np.random.Generator, count: int = 8) -> Batch:
    """Return grey pictures with a bright column, whose place is what is true of all values."""
    images = np.full((count, 2, 12, 128, 256), 90, np.uint8)
    targets = np.zeros((count, SIZE), np.float32)
    places = places_in_target(VISION_TARGETS)
    plan = places["plan"]
    # The camera stands above the road, as that of any picture.
    targets[:, places["road_transform"].start + 2] = HEIGHT_M
    for index in range(count):
        column = int(rng.integers(20, 236))
        images[index, ..., column - 4 : column + 4] = 220
        targets[index, plan] = (column - 128) / 60.0
    return Batch(images, targets, np.zeros(count, np.int32))


def toy_state(path: Path) -> VisionState:
    torch.set_num_threads(1)
    options = TrainingOptions(path)
    state = begin(options)
    rng = np.random.default_rng(0)
    targets = rng.normal(size=(200, SIZE)).astype(np.float32)
    state.scaling = measure(VISION_TARGETS, targets)
    # What a mirrored picture would want of each value is another test's matter.
    return state


def test_loss_falls(tmp_path: Path) -> None:
    state, rng = toy_state(tmp_path), np.random.default_rng(1)
    losses = [step(state, toy_batch(rng), 2e-3)[0] for _ in range(40)]
    assert np.mean(losses[-8:]) < np.mean(losses[:8]) - 0.5


def test_checkpoint_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    first, rng = toy_state(tmp_path), np.random.default_rng(1)
    for _ in range(3):
        step(first, toy_batch(rng), 1e-3)
    first.spent_s, first.next_world = 12.5, 7
    checkpoint.save(tmp_path, {"vision": save_state(first)})
    second = restore_state(TrainingOptions(tmp_path), checkpoint.load(tmp_path)["vision"])
    assert (second.step, second.spent_s, second.next_world) == (3, 12.5, 7)
    assert second.scaling is not None
    assert first.scaling is not None
    np.testing.assert_array_equal(second.scaling.deviation, first.scaling.deviation)
    batch = toy_batch(rng)
    for state in (first, second):
        state.rng = np.random.default_rng(5)
        torch.manual_seed(6)
        copy = Batch(batch.images.copy(), batch.targets.copy(), batch.kinds)
        step(state, copy, 1e-3)
    for name, value in first.network.state_dict().items():
        assert torch.equal(value, second.network.state_dict()[name]), name
    for name, value in first.average.state.items():
        assert torch.equal(value, second.average.state[name]), name


def test_no_checkpoint_and_damaged_ones_are_told(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"found none; train without --resume$"):
        checkpoint.load(tmp_path)
    checkpoint.save(tmp_path, {"vision": 1})
    path = tmp_path / checkpoint.NAME
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"x" * 100):
        path.write_bytes(damaged)
        with pytest.raises(TrainingError, match=r"found it damaged") as caught:
            checkpoint.load(tmp_path)
        assert "\n" not in str(caught.value)
    torch.save({"format": 0}, path)
    with pytest.raises(TrainingError, match=rf"of format {checkpoint.FORMAT}, found 0; train anew"):
        checkpoint.load(tmp_path)


def test_rate_rises_and_falls() -> None:
    rates = [learning_rate(share, 1.0) for share in np.linspace(0.0, 1.0, 101)]
    assert max(rates) == rates[3] == pytest.approx(1.0, abs=1e-6)
    assert rates[0] == pytest.approx(0.05)
    assert rates[-1] == pytest.approx(0.01)
    assert all(a >= b for a, b in itertools.pairwise(rates[3:]))


def test_disturbed_pictures_keep_their_middle_and_shape() -> None:
    images = torch.full((64, 2, 12, 128, 256), 127, dtype=torch.uint8)
    views = disturbed(images, np.random.default_rng(0), torch.float32)
    assert views.shape == images.shape
    # Grey stays grey but for the shift of the luma; chroma is not shifted.
    assert views[:, :, 4:6].mean().abs() < 0.01
    means = views[:, 0, 0].mean((1, 2))
    assert means.std() > 0.05
    assert means.abs().max() < 0.25


def test_about_half_of_a_batch_is_mirrored() -> None:
    rng = np.random.default_rng(0)
    batch = toy_batch(rng, 32)
    before = batch.images.copy()
    mirror_some(batch, rng)
    changed = [not np.array_equal(a, b) for a, b in zip(before, batch.images, strict=True)]
    assert 8 < sum(changed) < 24
