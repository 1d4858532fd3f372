"""A wrapped program is to the daemon what the other one is, but for what is overridden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.entry import TensorSpec
from tools.lib.wrapped_program import WrappedProgram

ARRAY = np.arange(3.0)


class Other:
    """Says what it was asked."""

    entries = ("run", "prepare")
    metadata: Mapping[str, Any] = {"interface": {}}

    def __init__(self) -> None:
        self.resets = 0

    def entry_inputs(self, entry: str | None = None) -> tuple[TensorSpec, ...]:
        return (TensorSpec(str(entry), (3,), np.dtype(np.float32)),)

    def run(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        return {f"{name} of {entry}": array for name, array in inputs.items()}

    def reset(self) -> None:
        self.resets += 1


class Doubled(WrappedProgram):
    """Doubles what goes in."""

    def run(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        return super().run({name: 2.0 * array for name, array in inputs.items()}, entry)


def test_it_answers_as_the_other_one() -> None:
    other = Other()
    program = WrappedProgram(other)
    assert program.entries == other.entries
    assert program.metadata is other.metadata
    assert program.entry_inputs("prepare") == other.entry_inputs("prepare")
    assert program.run({"x": ARRAY}, "run")["x of run"] is ARRAY
    program.reset()
    assert other.resets == 1


def test_runs_are_changed_by_subclasses() -> None:
    program = Doubled(Other())
    assert program.entries == ("run", "prepare")
    assert program.run({"x": ARRAY})["x of None"].tolist() == [0.0, 2.0, 4.0]
