"""A stage learns and goes on; a whole training in miniature is interrupted, resumed, exported."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from tests.tools.conftest import Modeld
from tools.simulator.training import checkpoint, vision_stage
from tools.simulator.training.heads import VISION_TARGETS, measure, places_in_target, size_of
from tools.simulator.training.networks.sweep import HEIGHT_M
from tools.simulator.training.options import TrainingOptions
from tools.simulator.training.samples.replay import Batch
from tools.simulator.training.training import first_learnt
from tools.simulator.training.vision_stage import VisionState, step

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
    state = vision_stage.begin(TrainingOptions(path))
    rng = np.random.default_rng(0)
    targets = rng.normal(size=(200, SIZE)).astype(np.float32)
    state.scaling = measure(VISION_TARGETS, targets)
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
    checkpoint.save(tmp_path, {"vision": vision_stage.save_state(first)})
    second = vision_stage.restore_state(
        TrainingOptions(tmp_path), checkpoint.load(tmp_path)["vision"]
    )
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


def test_rate_rises_and_falls() -> None:
    rates = [vision_stage.learning_rate(share, 1.0) for share in np.linspace(0.0, 1.0, 101)]
    assert max(rates) == rates[3] == pytest.approx(1.0, abs=1e-6)
    assert rates[0] == pytest.approx(0.05)
    assert rates[-1] == pytest.approx(0.01)
    assert all(a >= b for a, b in itertools.pairwise(rates[3:]))


def test_disturbed_pictures_keep_their_middle_and_shape() -> None:
    images = torch.full((64, 2, 12, 128, 256), 127, dtype=torch.uint8)
    views = vision_stage.disturbed(images, np.random.default_rng(0), torch.float32)
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
    vision_stage.mirror_some(batch, rng)
    changed = [not np.array_equal(a, b) for a, b in zip(before, batch.images, strict=True)]
    assert 8 < sum(changed) < 24


SMALL = ["--slots", "24", "--batch", "4", "--workers", "1", "--threads", "1"]


def test_a_round_learns_from_its_own_drives_and_those_of_the_round_before() -> None:
    assert [first_learnt(rounds, 40) for rounds in ([], [9], [9, 20], [9, 20, 33])] == [0, 0, 9, 20]
    # Neither has any: there is something to learn from all the same.
    assert first_learnt([2, 2, 2], 2) == 0
    assert first_learnt([5, 8, 8], 8) == 6


def run_to_the_end(*command: str) -> Any:
    options = [*command, *SMALL, "--json"]
    done = subprocess.run(options, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def cards_beside_models(*folders: Path) -> list[str]:
    """Check the models in some folders and return their cards."""
    for folder in folders:
        for name in ("vision.onnx", "policy.onnx"):
            onnx.checker.check_model(onnx.load(folder / name), full_check=True)
    return [(folder / "README.md").read_text(encoding="utf-8") for folder in folders]


@pytest.mark.timeout(900)
def test_training_is_interrupted_goes_on_and_ends_with_models(
    tmp_path: Path, modeld: Modeld
) -> None:
    directory, models, small = (tmp_path / name for name in ("training", "models", "small"))
    history = directory / "history.jsonl"
    command = [sys.executable, "-m", "tools.cli", "train", str(directory)]
    # As long as the first steps take on any machine; it is interrupted after them.
    first = [*command, "--minutes", "5", "--seed", "7", *SMALL]
    with subprocess.Popen(first, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            if history.exists() and '"stage": "vision"' in history.read_text(encoding="utf-8"):
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()
    assert process.returncode == 130
    assert f"resume with: modeld train {directory} --resume" in error
    assert "Traceback" not in error
    seeds = f"--seed: expected 7, with which the training in {directory} began, found 1"
    for options, said in (
        ([], "found one; continue with --resume"),
        (["--resume", "--seed", "1"], seeds),
    ):
        modeld.refused(2, said, "train", directory, *options, *SMALL)

    result = run_to_the_end(*command, "--minutes", "0.2", "--resume", "--export", str(models))
    assert result["steps"] > 0
    assert result["held_out"]["all"]["path_1s_m"] < 10.0
    for card in cards_beside_models(models, directory / "model"):
        assert "`modeld train --minutes 0.2 --seed 7`" in card
        assert "What it cannot do" in card
    assert (directory / "curves.html").stat().st_size > 1000
    assert (directory / "curves.svg").exists()
    assert list((directory / "drives").glob("*.npz"))

    before = (directory / "checkpoint.pt").read_bytes()
    result = run_to_the_end(*command, "--eight-bits", "0.1", "--export", str(small))
    assert min(result["steps"]) > 0
    assert list(result["apart"]) == ["rounded", "distilled"]
    assert 0.0 < result["apart"]["distilled"]["path at 1 s, m"] < 0.5
    for card in cards_beside_models(small, directory / "eight-bits"):
        assert "--eight-bits 0.1 --seed 7" in card
    assert (directory / "checkpoint.pt").read_bytes() == before
