"""Splits tell how a kernel that was refused is computed as several kernels.

    kernel {softmax(q @ k) @ v}, refused     ->     q @ k is stored, {softmax(..) @ v}, tried again

A kernel is refused where its code cannot be generated, or where it breaks a limit of the device.
Kernels that were merged are taken apart first, then values inside are stored. The user's model
still runs, more slowly; a warning says which part of it and why.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from scheduler.ir.node import Node
from scheduler.kernelize.limits import split_points

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refused:
    """A kernel that cannot be used.

    Attributes:
        targets: the stored nodes that it computes; several where kernels were merged.
        stored: what was stored in that attempt.
        origin: ONNX node names, for people.
        reason: why, one line.
    """

    targets: tuple[Node, ...]
    stored: frozenset[Node]
    origin: str
    reason: str

    def __str__(self) -> str:
        return f"kernel of {self.origin}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Splits:
    """What is done differently because kernels were refused.

    Attributes:
        pins: nodes to store in any case.
        alone: stored nodes whose kernels are not merged with others.
    """

    pins: frozenset[Node] = frozenset()
    alone: frozenset[Node] = frozenset()

    def with_split(self, refused: Refused) -> Splits | None:
        """Return more splits, those of a refused kernel; None if there is nothing left to split."""
        targets = frozenset(refused.targets)
        if len(targets) > 1 and not targets <= self.alone:
            _warn(refused, len(targets))
            return Splits(self.pins, self.alone | targets)
        pins = set[Node]()
        for target in refused.targets:
            pins |= split_points(target, refused.stored)
        if pins <= self.pins:
            return None
        _warn(refused, len(targets) + len(pins))
        # Else what was just taken out would be merged into it again.
        return Splits(self.pins | pins, self.alone | targets | pins)


def _warn(refused: Refused, kernels: int) -> None:
    logger.warning("%s; computing it as %d kernels", refused, kernels)
