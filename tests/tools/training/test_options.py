"""What `modeld train` refuses, in one line, and how a training goes on as the one that began."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.conftest import Modeld
from tools.errors import UsageError
from tools.simulator.training.options import (
    RECIPE,
    ROUND_SHARES,
    ROUNDS,
    VISION_SHARE,
    Seeds,
    TrainingOptions,
    parse_seeds,
    recipe_of,
    resumed,
)

SEEDS = "--worlds: expected FIRST:END with at least one seed, found "
HELD_OUT = "--held-out: expected seeds that are not trained on, found 49 in --worlds 0:50"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--worlds 0:50 --held-out 49:90", HELD_OUT),
        ("--worlds 7:7", SEEDS + "7:7"),
        ("--worlds 9:3", SEEDS + "9:3"),
        *(
            (arguments, f"{arguments.split()[0]}: expected")
            for arguments in (
                *("--minutes 0", "--minutes nan", "--seed -1", "--workers 0", "--threads 0"),
                *("--batch 1", "--slots 3", "--learning-rate 1"),
            )
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    modeld: Modeld, tmp_path: Path, arguments: str, said: str
) -> None:
    modeld.refused(2, said, "train", tmp_path / "t", *arguments.split())
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("text", ["", "3", "a:b", "1:2:3", "-1:4", "1.0:2"])
def test_seeds_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--held-out: expected FIRST:END"):
        parse_seeds("--held-out", text)


def test_worlds_begin_anew_after_the_last() -> None:
    assert [Seeds(5, 8).at(number) for number in range(4)] == [5, 6, 7, 5]


def test_refusals_and_help_load_no_torch() -> None:
    program = (
        "import sys; from tools import cli; code = cli.main(['train', 'x', '--minutes', '0']); "
        "sys.exit(code if 'torch' not in sys.modules else 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert done.returncode == 2


def test_shares_of_the_time_are_all_of_it_and_drives_have_what_learning_leaves() -> None:
    TrainingOptions(Path("x")).check()
    assert pytest.approx(1.0) == VISION_SHARE + sum(map(sum, ROUND_SHARES))
    options = TrainingOptions(Path("x"), minutes=100.0)
    # Of 6000 s the first two rounds have 3 and 5.5 % for drives, the first 2 % for learning.
    assert options.drives_until_s(0, 0.0) == pytest.approx(180.0)
    assert options.drives_until_s(1, 65.0) == pytest.approx(180.0 + 330.0 + 120.0 - 65.0)
    learnt_s = sum(map(options.learn_s, range(ROUNDS)))
    last_s = options.drives_until_s(ROUNDS - 1, learnt_s - options.learn_s(ROUNDS - 1))
    assert options.vision_s + last_s + learnt_s == pytest.approx(6000.0)


BEGUN = recipe_of(TrainingOptions(Path("t"), minutes=20.0, seed=3, worlds=Seeds(5, 9), batch=16))


def resume(**given: object) -> dict[str, object]:
    return resumed(dict.fromkeys(RECIPE) | given, BEGUN, Path("t"))


def test_what_is_not_given_is_as_it_began_but_time_and_rate_may_change() -> None:
    assert BEGUN["worlds"] == "5:9"
    assert resume() == BEGUN
    assert resume(minutes=5.0, learning_rate=1e-3) == BEGUN | {
        "minutes": 5.0,
        "learning_rate": 1e-3,
    }


@pytest.mark.parametrize(
    ("name", "value"), [("seed", 4), ("worlds", "5:10"), ("held_out", "1:2"), ("batch", 32)]
)
def test_what_would_be_another_training_is_refused(name: str, value: object) -> None:
    option = f"--{name.replace('_', '-')}: expected {BEGUN[name]}"
    with pytest.raises(UsageError, match=f"{option}, with which the training in t began, found"):
        resume(**{name: value})
    assert resume(**{name: BEGUN[name]})
