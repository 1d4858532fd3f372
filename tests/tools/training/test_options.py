"""What `modeld train` refuses, in one line, before anything is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import cli
from tools.errors import UsageError
from tools.training.options import ROUNDS, Seeds, TrainingOptions, parse_seeds


def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: str) -> str:
    assert cli.main(["train", str(tmp_path / "t"), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert not (tmp_path / "t").exists()
    return error


def test_held_out_seeds_that_are_trained_on_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    error = refused(capsys, tmp_path, "--worlds", "0:50", "--held-out", "49:90")
    assert "--held-out: expected seeds that are not trained on, found 49 in --worlds 0:50" in error


@pytest.mark.parametrize("text", ["7:7", "9:3"])
def test_worlds_without_a_seed_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str
) -> None:
    error = refused(capsys, tmp_path, "--worlds", text)
    assert f"--worlds: expected FIRST:END with at least one seed, found {text}" in error


@pytest.mark.parametrize("text", ["", "3", "a:b", "1:2:3", "-1:4", "1.0:2"])
def test_seeds_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--held-out: expected FIRST:END"):
        parse_seeds("--held-out", text)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--minutes", "0"),
        ("--minutes", "nan"),
        ("--seed", "-1"),
        ("--workers", "0"),
        ("--threads", "0"),
        ("--batch", "1"),
        ("--slots", "3"),
        ("--learning-rate", "1"),
    ],
)
def test_figures_that_cannot_work_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, str]
) -> None:
    assert f"{arguments[0]}: expected" in refused(capsys, tmp_path, *arguments)


def test_worlds_begin_anew_after_the_last() -> None:
    assert [Seeds(5, 8).at(number) for number in range(4)] == [5, 6, 7, 5]


def test_the_defaults_are_in_order() -> None:
    TrainingOptions(Path("x")).check()


def test_refusals_and_help_load_no_torch() -> None:
    program = (
        "import sys; from tools import cli; code = cli.main(['train', 'x', '--minutes', '0']); "
        "sys.exit(code if 'torch' not in sys.modules else 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert done.returncode == 2


def test_shares_of_the_time_are_all_of_it_and_drives_have_what_learning_leaves(
    tmp_path: Path,
) -> None:
    options = TrainingOptions(tmp_path, minutes=100.0)
    # Of 6000 s the first two rounds have 3 and 5.5 % for drives, the first 2 % for learning.
    assert options.drives_until_s(0, 0.0) == pytest.approx(180.0)
    assert options.drives_until_s(1, 65.0) == pytest.approx(180.0 + 330.0 + 120.0 - 65.0)
    learnt_s = sum(map(options.learn_s, range(ROUNDS)))
    last_s = options.drives_until_s(ROUNDS - 1, learnt_s - options.learn_s(ROUNDS - 1))
    assert options.vision_s + last_s + learnt_s == pytest.approx(6000.0)
