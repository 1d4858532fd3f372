"""Drives simulated cars with the networks, several at a time, in worker processes.

Each process runs `ABREAST` drives side by side, because networks are faster on batches. The
*student* is the present model; it sees in all drives, and drives the car in some of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from modeld.constants import IDX_COUNT, PLAN_WIDTH
from tools.simulator.training.heads import (
    HIDDEN_WIDTH,
    HISTORY_ROWS,
    PLAN,
    VISION_TARGETS,
    Scaling,
    Singles,
    mirror_images,
    part_of,
)
from tools.simulator.training.networks.networks import Policy, Vision, as_input, fast_dtype, folded
from tools.simulator.training.options import Seeds
from tools.simulator.training.samples.drives import CONVENTION, Drive

# Number of simultaneous drives per process.
ABREAST = 6


@dataclass(frozen=True, slots=True)
class DrivesPlan:
    """The plan of a round of drives, shared by all workers.

    Attributes:
        student: file of the networks' weights and the scaling.
        seed: seed of the drives.
        worlds: seeds of the worlds.
        first: number of the first drive.
        workers: number of workers, among which the drives are divided.
        student_share: share of drives that the student drives.
    """

    student: Path
    seed: int
    worlds: Seeds
    first: int
    workers: int
    student_share: float


class Student:
    """The networks that see and plan in simulated drives, in inference mode."""

    def __init__(self, vision: Vision, policy: Policy, scaling: Scaling) -> None:
        self._trunk, self._policy = folded(vision).trunk, policy.eval()
        self._dtype = fast_dtype()
        plan = part_of(VISION_TARGETS, scaling, (PLAN,))
        self._mean, self._deviation = plan.mean, plan.deviation

    @classmethod
    def load(cls, path: Path) -> Student:
        """Return the student from a file of `save_student`."""
        saved = torch.load(path, map_location="cpu", weights_only=True)
        vision, policy = Vision(), Policy()
        vision.load_state_dict(saved["vision"])
        policy.load_state_dict(saved["policy"])
        return cls(vision, policy, Scaling(*(part.numpy() for part in saved["scaling"])))

    @torch.inference_mode()
    def see(self, images: np.ndarray[Any, np.dtype[np.uint8]]) -> Singles:
        """Return `hidden_state` of pairs of views: (n, 2, 12, 128, 256) to (n, 512)."""
        views = as_input(torch.from_numpy(images), self._dtype)
        with torch.autocast("cpu", self._dtype, enabled=self._dtype == torch.bfloat16):
            return np.asarray(self._trunk(views).numpy())

    @torch.inference_mode()
    def plan(self, desires: Singles, convention: Singles, features: Singles) -> Singles:
        """Return the mean plans (n, 33, 15) for histories, the inputs of `Policy.forward`."""
        inputs: list[Tensor] = [torch.from_numpy(a) for a in (desires, convention, features)]
        output = self._policy(*inputs)["plan"][:, : PLAN.size].numpy()
        plans = output * self._deviation + self._mean
        return np.asarray(plans.reshape(-1, IDX_COUNT, PLAN_WIDTH), np.float32)


def save_student(path: Path, vision: Vision, policy: Policy, scaling: Scaling) -> None:
    """Write the networks to a file for the worker processes."""
    torch.save(
        {
            "vision": vision.state_dict(),
            "policy": policy.state_dict(),
            "scaling": [torch.from_numpy(p) for p in (scaling.mean, scaling.deviation)],
        },
        path,
    )


def drive_on(
    plan: DrivesPlan, worker: int, is_stopped: Callable[[], bool], send: Callable[[Any], None]
) -> None:
    """Drive until stopped, and send the record of each drive; main function of a process."""
    torch.set_num_threads(1)
    student = Student.load(plan.student)
    number = plan.first + worker
    running: list[tuple[Drive, Singles, Singles]] = []
    while not is_stopped():
        while len(running) < ABREAST:
            # Spread the student's drives evenly over the numbers.
            share = plan.student_share
            is_student = int((number + 1) * share) > int(number * share)
            drive = Drive(plan.seed, plan.worlds, number, is_student=is_student)
            features = np.zeros((HISTORY_ROWS, HIDDEN_WIDTH), np.float32)
            running.append((drive, features, np.zeros((HISTORY_ROWS, 8), np.float32)))
            number += plan.workers
        _row(student, running)
        for drive, _, _ in running:
            if drive.is_over:
                send(drive.record())
        running = [entry for entry in running if not entry[0].is_over]


def _row(student: Student, running: list[tuple[Drive, Singles, Singles]]) -> None:
    """Advance all drives by one row."""
    pictures = np.stack([drive.look() for drive, _, _ in running])
    seen = zip(running, student.see(pictures), student.see(mirror_images(pictures)), strict=True)
    for (drive, features, desires), feature, mirrored in seen:
        for history in (features, desires):
            history[:-1] = history[1:]
        features[-1] = feature
        desires[-1] = drive.record_row(feature, mirrored)
    plans = student.plan(
        np.stack([desires for _, _, desires in running]),
        np.tile(CONVENTION, (len(running), 1)),
        np.stack([features for _, features, _ in running]),
    )
    for (drive, _, _), plan in zip(running, plans, strict=True):
        drive.step(plan if drive.is_student else None)
