"""A checkpoint of other networks is told from one of these before its weights are taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.errors import TrainingError
from tools.training import checkpoint
from tools.training.architecture import PolicySize
from tools.training.networks import Policy


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, {"rounds": [2], "options": {"seed": 3}})
    assert checkpoint.load(tmp_path)["options"] == {"seed": 3}


def test_other_networks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "Policy", lambda: Policy(PolicySize(row=31)))
        checkpoint.save(tmp_path, {"rounds": [2]})
    with pytest.raises(TrainingError, match="found one of others; train anew"):
        checkpoint.load(tmp_path)


def test_other_formats_and_damage_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 1)
        checkpoint.save(tmp_path, {})
    expected = f"expected a checkpoint of format {checkpoint.FORMAT}, found 1"
    with pytest.raises(TrainingError, match=expected):
        checkpoint.load(tmp_path)
    path = tmp_path / checkpoint.NAME
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(TrainingError, match="found it damaged"):
        checkpoint.load(tmp_path)
