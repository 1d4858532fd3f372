"""What a checkpoint keeps of a training's options, so that it goes on as it began."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.errors import UsageError
from tools.training.options import TrainingOptions

# What may not change while a training goes on: it would be another one.
_FIXED = ("seed", "worlds", "held_out", "batch")
# What may: more or less time, a lower rate after a loss that diverged.
_FREE = ("minutes", "learning_rate")
RECIPE = (*_FIXED, *_FREE)


def recipe_of(options: TrainingOptions) -> dict[str, Any]:
    """Return what a checkpoint keeps: numbers, and seeds as users write them."""
    found = {name: getattr(options, name) for name in RECIPE}
    return found | {name: str(found[name]) for name in ("worlds", "held_out")}


def resumed(given: Mapping[str, Any], saved: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the recipe of a training that goes on: what is given now, else what was saved.

    Args:
        given: by the user; None where nothing was.
        saved: of the checkpoint.
        directory: of the training.

    Raises:
        UsageError: something was given that differs, and may not.
    """
    for name in _FIXED:
        if given[name] is not None and given[name] != saved[name]:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option}: expected {saved[name]}, with which the training in {directory} began, "
                f"found {given[name]}; leave it out, or train again in another directory"
            )
    return {name: saved[name] if given[name] is None else given[name] for name in RECIPE}
