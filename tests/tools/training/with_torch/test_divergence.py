"""A training that diverges can do what it advises, also before its first regular checkpoint."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tools import cli
from tools.training import checkpoint, training, vision_stage

SMALL = ["--slots", "24", "--batch", "4", "--workers", "1", "--threads", "1", "--minutes", "0.1"]


def test_a_loss_that_is_no_number_at_once_can_be_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # It changes how this process takes memory, until it ends.
    monkeypatch.setattr(training, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(vision_stage, "step", lambda *_: (math.nan, {}))
    for options in ([], ["--resume", "--learning-rate", "0.001"]):
        assert cli.main(["train", str(tmp_path), *SMALL, *options, "-q"]) == 1
        error = capsys.readouterr().err
        assert "expected a loss that falls, found nan" in error
        assert "go on from the last checkpoint with --resume" in error
        assert error.count("\n") == 1
        state = checkpoint.load(tmp_path)
        assert state["vision"]["step"] == len(state["rounds"]) == 0
