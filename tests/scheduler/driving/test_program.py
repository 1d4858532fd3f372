"""The compiled driving program of each revision against numpy and onnxruntime.

Queues and images are compared bit by bit, output vectors within 1e-4 of the largest value.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cereal.frames import nv12_format
from runtime import load_program
from runtime.format.interfaces import Interface, parse_interface
from runtime.run.executor import Program
from scheduler.check.self_check import _frame_failures, verify_driving
from scheduler.compile import compile_driving
from scheduler.driving.program import DEFAULT_CAPACITY
from scheduler.driving.revisions import load_revisions
from tests.reference_loop.compare import states_that_differ
from tests.reference_loop.drive import CAR
from tests.reference_loop.loop import Loop
from tests.reference_loop.revisions import TABLE
from tests.reference_loop.warps import Picture, view
from tests.scheduler.support.revisions import models_of, revision_artifact
from tests.support.selection import quick_cases

pytestmark = pytest.mark.opencl
Array = NDArray[Any]
LAYOUT = nv12_format(320, 200)
GEOMETRY = np.array([LAYOUT.width, LAYOUT.height, LAYOUT.stride, LAYOUT.uv_offset], np.int32)
DISTINCT = 7  # frames, a period that no step of a history has
TOLERANCE = 1e-4


@cache
def camera(index: int) -> dict[str, Array]:
    """Random frames under a moving, rotated and zooming view that reaches over the border."""
    rng = np.random.default_rng(index)
    angle, zoom = 0.04 * index, 0.5 + 0.08 * index
    rotation = np.array(
        [[np.cos(angle), -np.sin(angle), 12.0 * index - 20], [np.sin(angle), np.cos(angle), 5.0]]
    )
    road = np.vstack([rotation * zoom, [4e-4 * index, -2e-4, 1.0]]).astype(np.float32)
    frames = rng.integers(0, 256, (2, LAYOUT.payload_bytes)).astype(np.uint8)
    cameras = {"road": road, "wide": np.linalg.inv(road).astype(np.float32)}
    found = {f"{name}_transform": matrix for name, matrix in cameras.items()}
    found |= {f"{name}_frame": frame for name, frame in zip(cameras, frames, strict=True)}
    return found | {f"{name}_geometry": GEOMETRY for name in cameras}


@cache
def images(index: int, mode: str) -> dict[str, Array]:
    """What the models see of a camera."""
    seen, found = camera(index), {}
    for name in ("road", "wide"):
        size = (LAYOUT.width, LAYOUT.height)
        picture = Picture(seen[f"{name}_frame"], *size, LAYOUT.stride, LAYOUT.uv_offset, index)
        found[name] = view(picture, seen[f"{name}_transform"], mode)
    return found


def desire_at(frame: int) -> Array:
    """A pulse now and then, not always of the same kind."""
    desire = np.zeros(8, np.float32)
    desire[frame % 5 + 1] = float(frame % 6 == 0)
    return desire


def host_at(frame: int) -> dict[str, Array]:
    """The inputs that the host computes, of all revisions."""
    return {
        "traffic_convention": np.eye(2, dtype=np.float32)[frame % 2][None],
        "action_t": np.array([[0.2 + 0.001 * frame, 0.3]], np.float32),
        "lateral_control_params": np.array([[0.1 * frame, 0.25]], np.float32),
    }


class Both:
    """A program and the reference loop of the same models, given the same frames."""

    def __init__(self, name: str, program: Program) -> None:
        self.program = program
        self.interface: Interface = parse_interface(program.metadata["interface"])
        self.loop = Loop(TABLE[name], models_of(name), CAR, {})

    def inputs(self, frame: int) -> dict[str, Array]:
        host = host_at(frame)
        given = camera(frame % DISTINCT) | {"desire": desire_at(frame)}
        return given | {name: host[name] for name in self.interface.host_inputs}

    def prepare(self, frame: int) -> None:
        """Advance the queues of both by a frame that no model sees."""
        given = camera(frame % DISTINCT) | {"desire": desire_at(frame)}
        assert self.program.run(given, "prepare") == {}
        self._push(frame)

    def run(self, frame: int, tolerance: float = TOLERANCE) -> dict[str, Array]:
        """Run both, compare each model's vector, and return the program's."""
        got = self.program.run(self.inputs(frame), "run")
        assert list(got) == [f"{part.role}_outputs" for part in self.interface.models]
        self._push(frame)
        self.loop.run(host_at(frame) | {"pulse": desire_at(frame)})
        for found, model in zip(got.values(), self.loop.models, strict=True):
            worst = np.abs(found[0] - model.vector).max()
            assert worst <= tolerance * np.abs(model.vector).max(), f"frame {frame}"
        return {name: vector.copy() for name, vector in got.items()}

    def _push(self, frame: int) -> None:
        for name, image in images(frame % DISTINCT, self.interface.image.mode).items():
            self.loop.images[name].push(image)
        self.loop.desires.push(desire_at(frame))

    def check_states(self, hidden: list[Array]) -> None:
        """Compare what the device keeps with the lists of the loop, and its own features."""
        assert states_that_differ(self.loop, self.program.state) == []
        if self.interface.features is not None:
            kept = self.program.state("features")
            newest = np.array(hidden[-len(kept) :])
            rows = kept.reshape(len(kept), -1)
            assert np.array_equal(rows[len(kept) - len(newest) :], newest)
            assert not rows[: len(kept) - len(newest)].any()


@pytest.mark.parametrize("name", quick_cases(load_revisions(), "split-2025"))
def test_every_revision_agrees_with_the_reference_loop(name: str) -> None:
    with load_program(revision_artifact(name)) as program:
        both = Both(name, program)
        rules = both.interface
        assert rules.name == name
        assert ("prepare" in program.entries) == (rules.drop_policy == "skip")
        source = next((p for p in rules.models if "hidden_state" in p.slices), None)
        hidden: list[Array] = []
        outputs: list[dict[str, Array]] = []
        histories = (rules.desire, rules.features, rules.curvature)
        # All histories are full, and lose their first rows.
        frames = max([100, *(rule.frames for rule in histories if rule is not None)]) + 12
        for i in range(frames):
            if i % 23 == 11 and "prepare" in program.entries:
                both.prepare(i)
            else:
                outputs.append(both.run(i))
                if source is not None:
                    vector = outputs[-1][f"{source.role}_outputs"][0]
                    hidden.append(vector[slice(*source.slices["hidden_state"])])
            if i % 20 == 12 or i == frames - 1:
                both.check_states(hidden)
        program.reset()
        again = program.run(both.inputs(0), "run")
        assert all(np.array_equal(first, again[n]) for n, first in outputs[0].items())


@pytest.mark.slow
def test_half_storage_stays_near_the_reference_loop(tmp_path: Path) -> None:
    models = list(models_of("split-2025").values())
    made = compile_driving(models, capacity=LAYOUT.payload_bytes, precision="fp16")
    made.write(tmp_path / "driving.pkl")
    with load_program(tmp_path / "driving.pkl") as program:
        both = Both("split-2025", program)
        for i in range(DISTINCT):
            both.run(i, 1e-2)
            kept = both.loop.images["road"].recent[-5:]
            assert np.array_equal(program.state("road_images")[-len(kept) :], np.stack(kept))


def test_the_default_capacity_is_a_padded_frame_of_3840_x_2160() -> None:
    assert nv12_format(3840, 2160).payload_bytes == DEFAULT_CAPACITY


@pytest.mark.slow  # the self-test of every revision (`check/test_vectors.py`) has a quick one
@pytest.mark.parametrize("name", ["supercombo-2026", "history-2026", "supercombo-0.9.7"])
def test_a_program_passes_its_self_check(name: str) -> None:
    paths = list(models_of(name).values())
    reports = verify_driving(compile_driving(paths).build(), paths[::-1], {})
    assert [report.failures for report in reports] == [()] * (len(paths) + 1)


def test_what_is_wrong_with_the_frames_of_a_program_is_named() -> None:
    def run(*values: float) -> dict[str, Array]:
        return {"y": np.array(values, np.float32)}

    moves, same = [run(1), run(2)], [run(1), run(1)]
    assert _frame_failures("run", moves, moves) == []
    (line,) = _frame_failures("run", moves, [run(1), run(3)])
    assert line == 'run: output "y" is not the same after a reset'
    (line,) = _frame_failures("run", same, same)
    assert line == 'run: output "y" is the same for all frames'
    nan = [run(1), run(np.inf)]
    assert 'run: output "y" is not finite' in _frame_failures("run", nan, nan)
