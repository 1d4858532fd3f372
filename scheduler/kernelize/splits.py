"""What happens when the code of a kernel cannot be generated: it is computed as several kernels.

    kernel {softmax(q @ k) @ v}, refused     ->     q @ k is stored, {softmax(..) @ v}, tried again

Kernels that were merged are taken apart first, then values inside are stored. The user's model
still runs, more slowly; a warning says which part of it and why. Only a kernel of a single
operation is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from scheduler.errors import LoweringError
from scheduler.ir.node import Node
from scheduler.kernelize.limits import split_points

logger = logging.getLogger(__name__)

# Each round lowers everything again, so a systematic failure must come to an end.
MAX_ROUNDS = 32

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refused:
    """A kernel that could not be generated.

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


@dataclass(frozen=True, slots=True)
class Splits:
    """What is done differently because kernels were refused.

    Attributes:
        pins: nodes to store in any case.
        alone: stored nodes whose kernels are not merged with others.
    """

    pins: frozenset[Node] = frozenset()
    alone: frozenset[Node] = frozenset()


class KernelRefusedError(LoweringError):
    """A kernel cannot be generated; `refused` says which, so that it can be split."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(f"kernel of {refused.origin}: {refused.reason}")
        self.refused = refused


def with_splits(make: Callable[[Splits], T]) -> T:
    """Return what `make` makes, splitting kernels whose generation fails until it succeeds.

    Args:
        make: makes kernels and their code as the splits say. Their nodes are those of the graph
            after the passes, so the passes run once, outside.

    Raises:
        LoweringError: a kernel of one operation cannot be generated, or splitting does not help;
            the message names its origin.
    """
    splits = Splits()
    for _ in range(MAX_ROUNDS):
        try:
            return make(splits)
        except KernelRefusedError as error:
            more = _split(error.refused, splits)
            if more is None:
                raise LoweringError(
                    f"{error}; it is a single operation, which cannot be split further: rewrite "
                    "this part of the model"
                ) from error
            splits = more
    try:
        return make(splits)
    except KernelRefusedError as error:
        raise LoweringError(
            f"{error}; still refused after {MAX_ROUNDS} splits: rewrite this part of the model"
        ) from error


def _split(refused: Refused, splits: Splits) -> Splits | None:
    """Return more splits, None if there is nothing left to split."""
    targets = frozenset(refused.targets)
    if len(targets) > 1 and not targets <= splits.alone:
        _warn(refused, len(targets))
        return Splits(splits.pins, splits.alone | targets)
    pins = set[Node]()
    for target in refused.targets:
        pins |= split_points(target, refused.stored)
    if pins <= splits.pins:
        return None
    _warn(refused, len(targets) + len(pins))
    # Else what was just taken out would be merged into it again.
    return Splits(splits.pins | pins, splits.alone | targets | pins)


def _warn(refused: Refused, kernels: int) -> None:
    logger.warning(
        "kernel of %s: %s; computing it as %d kernels", refused.origin, refused.reason, kernels
    )
