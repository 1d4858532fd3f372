"""Drives as a policy learns from them: histories, each as it was and as in a mirror."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tools.training.commanding import times_learnt
from tools.training.heads import HIDDEN_WIDTH, HISTORY_ROWS, PLAN, POLICY_HEADS, Singles
from tools.training.networks.scaling import Scaling
from tools.training.samples.drives import CONVENTION, DriveRecord
from tools.training.samples.mirror import mirror_desires, mirror_target

# Empty rows before each drive: histories reach so far back.
PAD = HISTORY_ROWS - 1


@dataclass(frozen=True, slots=True)
class Histories:
    """All drives one after the other, each behind `PAD` empty rows.

    Attributes:
        features: (n, 512) float16.
        pulses: (n, 8).
        targets: (n, size) float16.
        conventions: (n, 2).
        present: (n,) float32, 0 in empty rows, else 1.
        rows: (m,) where a history may end, some of them several times.
    """

    features: Tensor
    pulses: Tensor
    targets: Tensor
    conventions: Tensor
    present: Tensor
    rows: Tensor

    def until(self, ends: Tensor) -> Tensor:
        """Return the rows of the histories that end at some, (m, 25); oldest first."""
        return ends[:, None] + torch.arange(-PAD, 1)

    def inputs(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return pulses (m, 25, 8), conventions (m, 2) and features (m, 25, 512) of rows (m, 25).

        Features of empty rows are zeros.
        """
        return self.pulses[rows], self.conventions[rows[:, -1]], self.features[rows].float()


def join(drives: Sequence[DriveRecord], scaling: Scaling) -> Histories:
    """Return drives and their mirrors as one table; targets in units of the scaling."""
    features, pulses, targets, conventions, present, rows = [], [], [], [], [], []
    end = 0
    size = sum(head.size for head in POLICY_HEADS)
    for seen, asked, wanted, side in (way for drive in drives for way in _ways(drive)):
        count = len(seen)
        features += [np.zeros((PAD, HIDDEN_WIDTH), np.float16), seen]
        pulses += [np.zeros((PAD, asked.shape[1]), np.float32), asked]
        plan = wanted.copy()
        plan[:, : PLAN.size] = (plan[:, : PLAN.size] - scaling.mean) / scaling.deviation
        targets += [np.zeros((PAD, size), np.float16), plan.astype(np.float16)]
        conventions.append(np.tile(side, (PAD + count, 1)))
        present.append(np.repeat(np.array([0.0, 1.0], np.float32), (PAD, count)))
        ends = np.arange(end + PAD, end + PAD + count)
        rows.append(np.repeat(ends, times_learnt(wanted)))
        end += PAD + count
    parts = (features, pulses, targets, conventions, present, rows)
    return Histories(*(torch.from_numpy(np.concatenate(part)) for part in parts))


def _ways(drive: DriveRecord) -> Iterator[tuple[NDArray[np.float16], Singles, Singles, Singles]]:
    """Yield features, pulses, targets and side of a drive, and of the same seen in a mirror."""
    yield drive.features, drive.pulses, drive.targets, CONVENTION
    targets = mirror_target(POLICY_HEADS, drive.targets)
    yield drive.mirrored, mirror_desires(drive.pulses), targets, CONVENTION[::-1]
