"""Checkpoints: others are refused, and trainings go on from them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.tools.conftest import Modeld
from tools.errors import TrainingError
from tools.simulator.training import checkpoint, training, vision_stage
from tools.simulator.training.networks.architecture import PolicySize
from tools.simulator.training.networks.networks import Policy
from tools.simulator.training.options import ROUNDS, TrainingOptions, recipe_of

SMALL = ["--slots", "24", "--batch", "4", "--workers", "1", "--threads", "1", "--minutes", "0.1"]


def test_what_is_no_checkpoint_of_these_networks_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(match: str) -> None:
        with pytest.raises(TrainingError, match=match) as caught:
            checkpoint.load(tmp_path)
        assert "\n" not in str(caught.value)

    refused(r"found none; train without --resume$")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "Policy", lambda: Policy(PolicySize(row=31)))
        checkpoint.save(tmp_path, {"rounds": [2]})
    refused("found one of others; train again")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 1)
        checkpoint.save(tmp_path, {})
    refused(rf"expected a checkpoint of format {checkpoint.FORMAT}, found 1; train again")
    path = tmp_path / checkpoint.NAME
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole[:200], b"x" * 100):
        path.write_bytes(damaged)
        refused("found it damaged")


def test_a_loss_that_is_no_number_at_once_can_be_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modeld: Modeld
) -> None:
    # It changes how this process takes memory, until it ends.
    monkeypatch.setattr(training, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(vision_stage, "step", lambda *_: (math.nan, {}))
    for options in ([], ["--resume", "--learning-rate", "0.001"]):
        words = ["train", tmp_path, *SMALL, *options, "-q"]
        error = modeld.refused(1, "expected a loss that falls, found nan", *words).err
        assert "continue from the last checkpoint with --resume" in error
        state = checkpoint.load(tmp_path)
        assert state["vision"]["step"] == len(state["rounds"]) == 0


def test_what_is_no_finished_training_is_one_line(tmp_path: Path, modeld: Modeld) -> None:
    train = ("train", tmp_path)
    none = "expected the checkpoint of a training, found none"
    modeld.refused(1, f"{none}; train without --resume", *train, "--resume")
    modeld.refused(1, none, *train, "--eight-bits", 0)
    checkpoint.save(tmp_path, {"rounds": [9], "options": recipe_of(TrainingOptions(tmp_path))})
    unfinished = f"expected a finished training, found 1 of {ROUNDS} rounds of drives"
    for code, said, *options in (
        (1, unfinished, 0),
        (2, "--eight-bits: expected a number from 0 up to 1e+07, found -1", -1),
        (2, "--eight-bits: expected no --resume", 0, "--resume"),
    ):
        modeld.refused(code, said, *train, "--eight-bits", *options)
