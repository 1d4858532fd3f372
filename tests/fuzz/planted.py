"""Faults put in on purpose: tests show with them that the harness finds what it is for."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.fuzz import batch, compare
from tests.fuzz.case import Name


def spoil(plant: str, names: Sequence[Name]) -> None:
    """Do what is asked for where a program of that seed is among those to run.

    Args:
        plant: "crash:7" ends the process as a driver that gives up does, "hang:7" never answers,
            "wrong:7" changes the first element that is compared; "" does nothing.
        names: what is about to run.
    """
    what, _, seed = plant.partition(":")
    if not what or int(seed) not in [n.seed for n in names]:
        return
    if what == "crash":
        os.abort()
    if what == "hang":
        time.sleep(3600)
    right = compare.difference

    def wrong(got: Any, want: Any, *rest: Any) -> str:
        return right(got, replace(want, value=want.value + want.value.dtype.type(1)), *rest)

    batch.difference = wrong  # type: ignore[attr-defined, assignment]  # for this process only
