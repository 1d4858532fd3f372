"""Reads what a finished training has come to from its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tools.errors import TrainingError
from tools.training import checkpoint
from tools.training.networks.networks import Policy, Vision
from tools.training.networks.scaling import Scaling
from tools.training.options import ROUNDS


@dataclass(frozen=True, slots=True)
class Finished:
    """A trained model as networks, for evaluation.

    `vision` is averaged, `policy` that of the last round. Worlds from `next_world` on were not
    painted for it.
    """

    vision: Vision
    policy: Policy
    scaling: Scaling
    steps: int
    next_world: int
    drives: int


def load_finished(directory: Path) -> Finished:
    """Read the checkpoint of a finished training.

    Raises:
        TrainingError: there is none, it is damaged, or the training is not over.
    """
    state = checkpoint.load(directory)
    found = len(state["rounds"])
    if found < ROUNDS:
        raise TrainingError(
            f"{directory / checkpoint.NAME}: expected a finished training, found {found} of "
            f"{ROUNDS} rounds of drives; finish it with: modeld train {directory} --resume"
        )
    saved, vision, policy = state["vision"], Vision(), Policy()
    vision.load_state_dict(saved["average"]["state"])
    policy.load_state_dict(state["policy"])
    scaling = Scaling(*(part.numpy() for part in saved["scaling"]))
    return Finished(
        vision.eval(), policy.eval(), scaling, saved["step"], saved["next_world"], state["drives"]
    )
