"""A seeded part of the suite with something of every operator: `--onnx-sample N --onnx-seed S`."""

from collections.abc import Collection, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def sampled(cases: Sequence[tuple[T, Collection[str]]], count: int, seed: int) -> list[T]:
    """Return `count` cases in the order given, or all where there are fewer.

    In turn, each operator has one drawn of its cases that are still left, in an order of operators
    that is drawn, too: with as many cases as operators, none is without. Equal seeds give equal
    samples, in every process.
    """
    rng = np.random.default_rng(seed)
    by_operator: dict[str, list[int]] = {}
    for i in rng.permutation(len(cases)).tolist():
        for operator in sorted(cases[i][1]):
            by_operator.setdefault(operator, []).append(i)
    queues = [by_operator[op] for op in rng.permutation(sorted(by_operator)).tolist()]
    taken: set[int] = set()
    wanted = min(count, len(set().union(*queues)))
    while len(taken) < wanted:
        for queue in queues:
            while queue and queue[-1] in taken:
                queue.pop()
            if queue and len(taken) < wanted:
                taken.add(queue.pop())
    return [case for i, (case, _) in enumerate(cases) if i in taken]
