"""A whole training in miniature: interrupted, gone on with, exported, refused where it must be."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest

from tools import cli
from tools.training.training import first_learnt

COMMAND = [sys.executable, "-m", "tools.cli", "train"]
SMALL = ["--slots", "24", "--batch", "4", "--workers", "1", "--threads", "1"]


def wait_for_steps(path: Path, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        if path.exists() and '"stage": "vision"' in path.read_text(encoding="utf-8"):
            return
        time.sleep(0.1)


def test_a_round_learns_from_its_own_drives_and_those_of_the_round_before() -> None:
    assert [first_learnt(rounds, 40) for rounds in ([], [9], [9, 20], [9, 20, 33])] == [0, 0, 9, 20]
    # Neither has any: there is something to learn from all the same.
    assert first_learnt([2, 2, 2], 2) == 0
    assert first_learnt([5, 8, 8], 8) == 6


@pytest.mark.timeout(900)
def test_training_is_interrupted_goes_on_and_ends_with_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, models = tmp_path / "training", tmp_path / "models"
    # As long as the first steps take on any machine; it is interrupted after them.
    command = [*COMMAND, str(directory), "--minutes", "5", "--seed", "7", *SMALL]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_for_steps(directory / "history.jsonl", process)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()
    assert process.returncode == 130
    assert f"go on with: modeld train {directory} --resume" in error
    assert "Traceback" not in error

    assert cli.main(["train", str(directory), *SMALL]) == 2
    assert "found one; go on with --resume" in capsys.readouterr().err

    assert cli.main(["train", str(directory), "--resume", "--seed", "1", *SMALL]) == 2
    error = capsys.readouterr().err
    assert f"--seed: expected 7, with which the training in {directory} began, found 1" in error

    rest = ["--minutes", "0.2", "--resume", "--export", str(models), "--json", *SMALL]
    done = subprocess.run(
        [*COMMAND, str(directory), *rest], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["steps"] > 0
    assert result["held_out"]["all"]["path_1s_m"] < 10.0
    for folder in (models, directory / "model"):
        for name in ("vision.onnx", "policy.onnx"):
            onnx.checker.check_model(onnx.load(folder / name), full_check=True)
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert "`modeld train --minutes 0.2 --seed 7`" in card
        assert "What it cannot do" in card
    assert (directory / "curves.html").stat().st_size > 1000
    assert (directory / "curves.svg").exists()
    assert list((directory / "drives").glob("*.npz"))

    before = (directory / "checkpoint.pt").read_bytes()
    rest = ["--eight-bits", "0.1", "--export", str(tmp_path / "small"), "--json", *SMALL]
    done = subprocess.run(
        [*COMMAND, str(directory), *rest], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert min(result["steps"]) > 0
    assert list(result["apart"]) == ["rounded", "distilled"]
    assert 0.0 < result["apart"]["distilled"]["path at 1 s, m"] < 0.5
    for folder in (tmp_path / "small", directory / "eight-bits"):
        for name in ("vision.onnx", "policy.onnx"):
            onnx.checker.check_model(onnx.load(folder / name), full_check=True)
        assert "--eight-bits 0.1 --seed 7" in (folder / "README.md").read_text(encoding="utf-8")
    assert (directory / "checkpoint.pt").read_bytes() == before


def test_resuming_nothing_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", str(tmp_path / "none"), "--resume"]) == 1
    error = capsys.readouterr().err
    assert "expected the checkpoint of a training, found none; train without --resume" in error
    assert error.count("\n") == 1
