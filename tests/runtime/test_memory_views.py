"""Inputs and outputs in host memory: the same results as by commands, and whose memory is whose."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from runtime.executor import Program
from tests.runtime import tiny

pytestmark = pytest.mark.opencl
BASE = np.array([1, 2, 3, 4], np.float32)
Array = np.ndarray[Any, Any]


def load(**info: Any) -> Program:
    """Return the tiny program with a second entry that has the outputs of the first."""
    raw = tiny.megakernel_manifest()
    raw["entries"]["again"] = raw["entries"]["run"]
    return tiny.on_cpu(raw, **info)


@pytest.fixture
def program() -> Iterator[Program]:
    with load() as loaded:
        yield loaded


def test_results_are_equal_with_and_without_views_and_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for replay, views in product("01", (False, True)):
        monkeypatch.setenv("RUNTIME_REPLAY", replay)
        with load(**({} if views else {"platform": "another"})) as program:
            slots = program._entries["run"]
            found_views = [s.view for s in slots.inputs] + [s.view for s in slots.outputs]
            assert all((view is not None) is views for view in found_views)
            assert (len(slots.steps) == 1) is (replay == "1" and views)
            runs = []
            for turn in (1.0, 2.5, -3.0):
                outputs = program.run(tiny.inputs(turn), "again" if turn < 0 else None)
                runs += [outputs["y"].tobytes(), outputs["count"].tobytes()]
            found.append((runs, program.state("queue").tobytes()))
    assert all(one == found[0] for one in found[1:])


def test_inputs_may_be_reused_after_a_run(program: Program) -> None:
    inputs = tiny.inputs()
    y = program.run(inputs)["y"]
    expected = y.copy()
    inputs["x"][:] = np.nan
    inputs["frame"][:] = 0
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(program.state("queue")[2], BASE)
    # What is in the device's memory is the copy: the next run sees what it is given.
    np.testing.assert_array_equal(program.run(tiny.inputs())["y"], 4 * BASE + tiny.WEIGHT)


def test_inputs_are_left_as_they_are_and_may_be_read_only(program: Program) -> None:
    inputs = tiny.inputs()
    for array in inputs.values():
        array.flags.writeable = False
    program.run(inputs)
    np.testing.assert_array_equal(inputs["x"], BASE)


def test_outputs_stay_until_the_next_run_of_their_entry(program: Program) -> None:
    outputs = program.run(tiny.inputs())
    expected = {name: array.copy() for name, array in outputs.items()}
    program.run({"x": 7 * BASE}, "prepare")
    program.reset()
    other = program.run(tiny.inputs(5), "again")  # the same buffers of the device
    for name, array in expected.items():
        np.testing.assert_array_equal(outputs[name], array)
    assert not np.array_equal(other["y"], outputs["y"])
    assert program.run(tiny.inputs(3)) is outputs  # overwritten, as its docstring says
    assert not np.array_equal(outputs["y"], expected["y"])


def test_outputs_are_no_views_of_the_devices_memory() -> None:
    with load() as program:
        outputs = program.run(tiny.inputs())
        host = program._memory._host
        assert host is not None
        assert not any(np.shares_memory(array, host) for array in outputs.values())
        outputs["y"][:] = np.nan  # a caller may write to them
        np.testing.assert_array_equal(program.run(tiny.inputs())["y"], 4 * BASE + tiny.WEIGHT)
    np.testing.assert_array_equal(outputs["y"], 4 * BASE + tiny.WEIGHT)  # also after `close`


def test_an_output_may_be_the_next_input(program: Program) -> None:
    first = program.run(tiny.inputs())["y"]
    copied = {**tiny.inputs(), "x": first.copy()}
    expected = 2 * (BASE + copied["x"]) + tiny.WEIGHT
    np.testing.assert_array_equal(program.run({**copied, "x": first})["y"], expected)
