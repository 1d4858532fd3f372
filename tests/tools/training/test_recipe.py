"""A training that goes on is the one that began."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.errors import UsageError
from tools.training.options import (
    ROUND_SHARES,
    VISION_SHARE,
    Seeds,
    TrainingOptions,
)
from tools.training.recipe import RECIPE, recipe_of, resumed

BEGUN = TrainingOptions(Path("t"), minutes=20.0, seed=3, worlds=Seeds(5, 9), batch=16)
NOTHING: dict[str, object] = dict.fromkeys(RECIPE)


def test_what_is_not_given_is_as_it_began() -> None:
    saved = recipe_of(BEGUN)
    assert saved["worlds"] == "5:9"
    assert resumed(NOTHING, saved, Path("t")) == saved


def test_time_and_rate_may_change() -> None:
    found = resumed(NOTHING | {"minutes": 5.0, "learning_rate": 1e-3}, recipe_of(BEGUN), Path("t"))
    assert (found["minutes"], found["learning_rate"], found["seed"]) == (5.0, 1e-3, 3)


@pytest.mark.parametrize(
    ("name", "value", "option"),
    [
        ("seed", 4, "--seed: expected 3"),
        ("worlds", "5:10", "--worlds: expected 5:9"),
        ("held_out", "1:2", "--held-out: expected 1000000:1100000"),
        ("batch", 32, "--batch: expected 16"),
    ],
)
def test_what_would_be_another_training_is_refused(name: str, value: object, option: str) -> None:
    with pytest.raises(UsageError, match=f"{option}, with which the training in t began, found"):
        resumed(NOTHING | {name: value}, recipe_of(BEGUN), Path("t"))
    assert resumed(NOTHING | {name: recipe_of(BEGUN)[name]}, recipe_of(BEGUN), Path("t"))


def test_all_of_the_time_is_used() -> None:
    assert pytest.approx(1.0) == VISION_SHARE + sum(map(sum, ROUND_SHARES))
