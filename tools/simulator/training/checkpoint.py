"""Checkpoints of a training: everything that is needed to resume it or to export its model.

A checkpoint contains a digest of the names and shapes of all weights, to reject other networks.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runtime.files.user_file import whole_file
from tools.errors import TrainingError
from tools.simulator.training.heads import Scaling
from tools.simulator.training.networks.networks import Policy, Vision
from tools.simulator.training.options import ROUNDS

FORMAT = 7
NAME = "checkpoint.pt"
State = dict[str, Any]


def save(directory: Path, state: State) -> None:
    """Write a checkpoint, replacing the previous one atomically.

    Raises:
        OSError: it cannot be written; the previous one is untouched.
    """
    data = io.BytesIO()
    torch.save({"format": FORMAT, "networks": _networks(), **state}, data)
    with whole_file(directory / NAME) as file:
        file.write(data.getbuffer())


def load(directory: Path) -> State:
    """Read the checkpoint of a training.

    Raises:
        TrainingError: it is missing, corrupt, or of another version.
    """
    path = directory / NAME
    try:
        # Load only tensors and plain values, nothing that could execute code.
        state: State = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise TrainingError(
            f"{path}: expected the checkpoint of a training, found none; train without --resume"
        ) from None
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise TrainingError(
            f"{path}: expected a checkpoint, found it damaged ({type(error).__name__}); delete it "
            "and train again"
        ) from error
    found = state.get("format")
    if found != FORMAT:
        raise TrainingError(
            f"{path}: expected a checkpoint of format {FORMAT}, found {found}; train again"
        )
    if state.get("networks") != _networks():
        raise TrainingError(
            f"{path}: expected a checkpoint of the current networks, found one of others; "
            "train again, or continue with the version that wrote it"
        )
    return state


def _networks() -> str:
    """Return a digest of the names and shapes of all weights."""
    digest = hashlib.sha256()
    with torch.device("meta"):
        networks = (Vision(), Policy())
    for network in networks:
        for name, value in network.state_dict().items():
            digest.update(f"{name} {tuple(value.shape)}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Finished:
    """The networks of a finished training, for evaluation.

    Attributes:
        vision: network with averaged weights.
        policy: network of the last round.
        scaling: mean and deviation of the targets.
        steps: number of vision steps.
        next_world: number of the first world that was not rendered for training.
        drives: number of drives.
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
        TrainingError: it is missing or corrupt, or the training is not finished.
    """
    state = load(directory)
    found = len(state["rounds"])
    if found < ROUNDS:
        raise TrainingError(
            f"{directory / NAME}: expected a finished training, found {found} of "
            f"{ROUNDS} rounds of drives; finish it with: modeld train {directory} --resume"
        )
    saved, vision, policy = state["vision"], Vision(), Policy()
    vision.load_state_dict(saved["average"]["state"])
    policy.load_state_dict(state["policy"])
    scaling = Scaling(*(part.numpy() for part in saved["scaling"]))
    return Finished(
        vision.eval(), policy.eval(), scaling, saved["step"], saved["next_world"], state["drives"]
    )
