"""A wrapped program is to the daemon what the other one is, but for what is overridden."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tools.lib.wrapped_program import WrappedProgram

ARRAY = np.arange(3.0)


@pytest.fixture
def other() -> Any:
    """A program that says what it was asked."""
    resets: list[int] = []
    return SimpleNamespace(
        entries=("run", "prepare"),
        metadata={"interface": {}},
        entry_inputs=lambda entry=None: (entry,),
        run=lambda inputs, entry=None: {f"{n} of {entry}": array for n, array in inputs.items()},
        reset=lambda: resets.append(1),
        resets=resets,
    )


class Doubled(WrappedProgram):
    """Doubles what goes in."""

    def run(self, inputs: Any, entry: str | None = None) -> Any:
        return super().run({name: 2.0 * array for name, array in inputs.items()}, entry)


def test_it_answers_as_the_other_one_but_for_what_a_subclass_changes(other: Any) -> None:
    program = WrappedProgram(other)
    assert program.entries == other.entries
    assert program.metadata is other.metadata
    assert program.entry_inputs("prepare") == other.entry_inputs("prepare")
    assert program.run({"x": ARRAY}, "run")["x of run"] is ARRAY
    program.reset()
    assert other.resets == [1]
    assert Doubled(other).entries == ("run", "prepare")
    assert Doubled(other).run({"x": ARRAY})["x of None"].tolist() == [0.0, 2.0, 4.0]
