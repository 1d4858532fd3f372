"""Rows about the device and the model on it: errors, hangs, values; alone and with a fallback."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runtime
from runtime.selftest_inputs import Port, seeded_inputs, seeded_states
from runtime.selftest_spec import ExpectedValues, TestVector, plain_self_test, positions
from tests.faults.checks import check_logged, check_resumed
from tests.faults.faulty_opencl import Control, Mode
from tests.faults.service import Setup
from tests.faults.table import Row
from tests.faults.world import FALLBACK_MPS, PRIMARY_MPS, ROOM, World, running_world
from tests.tools.tiny_driving import write_tiny_driving

pytestmark = [pytest.mark.opencl, pytest.mark.alone, pytest.mark.slow]
WITH_FALLBACK = """
fallback_model = "{directory}/safe.pkl"
state_dir = "{directory}/state"
run_timeout_ms = 200
"""
# The fault's own frame, and two more, until the fallback model has spoken: the three.
FRAMES_TO_FALLBACK = 3
SEED = 5


@contextmanager
def world_with_fallback(directory: Path) -> Iterator[World]:
    """A daemon with both models, which is restarted as systemd would; it drives the primary."""
    (directory / "state").mkdir()
    more = WITH_FALLBACK.format(directory=directory)
    with running_world(directory, more=more, faulty=True, restarts=True) as world:
        world.wait_valid()
        assert world.recorder.messages[-1].speed_mps == pytest.approx(PRIMARY_MPS, abs=0.5)
        yield world


def with_self_test(path: Path) -> Path:
    """Write the primary model anew, with the self-test that a device without faults passes."""
    write_tiny_driving(path, ROOM, speed_mps=PRIMARY_MPS, name="primary")
    with runtime.load_program(path) as program:
        buffers = program.manifest.buffers
        states = [Port(b.name, b.shape, np.dtype(b.dtype)) for b in buffers if b.kind == "state"]
        for name, value in seeded_states(states, SEED).items():
            program.set_state(name, value)
        specs = program.entry_inputs("run")
        ports = [Port(s.name, s.shape, s.dtype, s.partial) for s in specs]
        outputs = program.run(seeded_inputs(ports, SEED), "run")
        expected = tuple(
            ExpectedValues(
                "output", name, array.shape, array.ravel()[positions(array.size)].copy(), 1e-3, 0.0
            )
            for name, array in outputs.items()
        )
    vector = TestVector(SEED, "run", expected)
    plain = plain_self_test((vector,))
    return write_tiny_driving(path, ROOM, speed_mps=PRIMARY_MPS, name="primary", self_test=plain)


def miscompiled(setup: Setup) -> Setup:
    """Let the device compute something else with the primary model."""
    assert setup.control is not None
    with_self_test(setup.control.with_name("primary.pkl"))
    Control(setup.control).order(Mode.WRONG, program="primary")
    return setup


def test_self_test_fails_with_a_fallback(tmp_path: Path, row: Row) -> None:
    (tmp_path / "state").mkdir()
    more = WITH_FALLBACK.format(directory=tmp_path)
    with running_world(tmp_path, more=more, faulty=True, change=miscompiled) as world:
        assert world.wait_valid(world.service.life.started_ns, 15.0) <= row.within_s
        check_logged(world, row, 0)
        assert all(is_fallback(message.speed_mps) for message in world.recorder.messages)


def test_self_test_fails_without_a_fallback(tmp_path: Path, row: Row) -> None:
    with running_world(tmp_path, faulty=True, restarts=True, change=miscompiled) as world:
        failed = world.service.life
        check_logged(world, row, 0, 15.0)
        # The driver is another one at the next start, say.
        world.control.clear()
        check_resumed(world, row, time.monotonic_ns())
        assert failed.code == row.exit_code
        assert not world.service.lines("Traceback")


def is_fallback(speed_mps: float) -> bool:
    """Whether the plan is the fallback model's."""
    return abs(speed_mps - FALLBACK_MPS) < 0.5


def check_fallback(world: World, row: Row, start_ns: int, most: int = FRAMES_TO_FALLBACK) -> None:
    """The fallback model speaks within some frames, in the same process, and for good."""
    first = world.wait_message(lambda message: is_fallback(message.speed_mps), start_ns)
    last = [m for m in world.recorder.since(start_ns - 10**9) if m.arrived_ns < first.arrived_ns]
    good = [m.frame_id for m in last if m.valid and m.arrived_ns <= start_ns]
    assert first.frame_id - good[-1] <= most + 1
    check_resumed(world, row, start_ns)
    check_logged(world, row, start_ns)
    world.control.clear()
    time.sleep(1.0)
    after = world.recorder.since(first.arrived_ns)
    assert all(is_fallback(message.speed_mps) for message in after)
    ids = [message.frame_id for message in after]
    assert ids == sorted(set(ids))
    assert len(world.service.lives) == 1
    assert world.service.life.code is None
    assert not world.service.lines("Traceback")
    assert (world.directory / "state/fallback.json").exists()


@pytest.mark.parametrize("mode", [Mode.DEVICE_LOST, Mode.OUT_OF_RESOURCES])
def test_run_fails_with_a_fallback(tmp_path: Path, row: Row, mode: Mode) -> None:
    with world_with_fallback(tmp_path) as world:
        start_ns = time.monotonic_ns()
        world.control.order(mode, program="primary")
        check_fallback(world, row, start_ns)


@pytest.mark.parametrize("mode", [Mode.DEVICE_LOST, Mode.OUT_OF_RESOURCES])
def test_run_fails_without_a_fallback(tmp_path: Path, row: Row, mode: Mode) -> None:
    with running_world(tmp_path, faulty=True, restarts=True) as world:
        world.wait_valid()
        failed = world.service.life
        start_ns = time.monotonic_ns()
        world.control.order(mode, 1)
        check_resumed(world, row, start_ns)
        assert failed.code == row.exit_code
        check_logged(world, row, start_ns)
        assert not world.service.lines("Traceback")


def with_small_fallback(setup: Setup) -> Setup:
    """Compile the fallback model for smaller cameras than the car has."""
    assert setup.control is not None
    path = setup.control.with_name("safe.pkl")
    write_tiny_driving(path, (64, 32), speed_mps=FALLBACK_MPS, name="safe")
    return setup


def test_run_fails_with_a_fallback_that_is_too_small(tmp_path: Path, row: Row) -> None:
    """It is found before it is needed; a fault then ends the process, which is started again."""
    (tmp_path / "state").mkdir()
    metrics = tmp_path / "modeld.prom"
    more = WITH_FALLBACK.format(directory=tmp_path) + f'metrics_file = "{metrics}"\n'
    with running_world(
        tmp_path, more=more, faulty=True, restarts=True, change=with_small_fallback
    ) as world:
        world.wait_valid()
        said = world.service.wait_line(row.logged[0])
        # Who looks at figures and health messages hears of it, too; these come once a second.
        figure = 'modeld_start_problems{daemon="driving"} 1\n'
        while not metrics.exists() or figure not in metrics.read_text("utf-8"):
            time.sleep(0.05)
            assert time.monotonic_ns() - said.arrived_ns < 5e9
        failed = world.service.life
        start_ns = time.monotonic_ns()
        world.control.order(Mode.DEVICE_LOST, 1)
        check_resumed(world, row, start_ns)
        assert failed.code == row.exit_code
        check_logged(world, row, 0)
        assert not any(is_fallback(message.speed_mps) for message in world.recorder.messages)


def test_device_is_lost_for_all_models(tmp_path: Path, row: Row) -> None:
    """The process ends, and the next one takes the device again once it is back."""
    with world_with_fallback(tmp_path) as world:
        failed = world.service.life
        start_ns = time.monotonic_ns()
        world.control.order(Mode.DEVICE_LOST)
        world.service.wait_line(row.logged[0], start_ns)
        while failed.code is None:
            time.sleep(0.01)
        assert failed.code == row.exit_code
        time.sleep(0.5)
        world.control.clear()
        check_resumed(world, row, time.monotonic_ns())
        assert is_fallback(world.recorder.messages[-1].speed_mps)


def test_kernel_never_returns_with_a_fallback(tmp_path: Path, row: Row) -> None:
    with world_with_fallback(tmp_path) as world:
        start_ns = time.monotonic_ns()
        world.control.order(Mode.HANG, 1, program="primary")
        # 200 ms of waiting, in which frames go by, and two frames more.
        check_fallback(world, row, start_ns, most=4 + FRAMES_TO_FALLBACK)
        # `check_fallback` has let the call return: nothing of it is published.
        assert world.service.pings(time.monotonic_ns() - 2_000_000_000)


def test_kernel_never_returns_without_a_fallback(tmp_path: Path, row: Row) -> None:
    more = "run_timeout_ms = 200"
    with running_world(tmp_path, more=more, faulty=True, restarts=True) as world:
        world.wait_valid()
        hung = world.service.life
        start_ns = time.monotonic_ns()
        world.control.order(Mode.HANG, 1)
        check_resumed(world, row, start_ns)
        assert hung.code == row.exit_code
        check_logged(world, row, start_ns)


def test_kernel_holds_the_device_with_a_fallback(tmp_path: Path, row: Row) -> None:
    """PoCL has one set of workers, so the fallback's run waits too; a new process has its own."""
    (tmp_path / "state").mkdir()

    def hanging(setup: Setup) -> Setup:
        path = tmp_path / "primary.pkl"
        write_tiny_driving(path, ROOM, speed_mps=PRIMARY_MPS, name="primary", hangs=True)
        return setup

    more = WITH_FALLBACK.format(directory=tmp_path)
    with running_world(tmp_path, more=more, restarts=True, change=hanging) as world:
        world.wait_valid()
        hung = world.service.life
        start_ns = time.monotonic_ns()
        # The car goes on saying so: only the fallback model can drive it.
        world.vehicle.changes["driverMonitoringState"] = sit_on_the_right
        given_up = world.service.wait_line(row.logged[0], start_ns)
        first = world.wait_message(lambda message: is_fallback(message.speed_mps), start_ns, 15.0)
        assert (hung.code, hung.by_watchdog) == (row.exit_code, False), world.service.text()
        check_logged(world, row, start_ns)
        # In between nobody speaks, neither model, and no run that comes late.
        assert first.arrived_ns > world.service.life.started_ns > given_up.arrived_ns
        assert world.recorder.since(given_up.arrived_ns)[0] == first
        assert len(world.service.lives) == 2
        check_resumed(world, row, first.arrived_ns)
        assert (first.arrived_ns - start_ns) / 1e9 <= row.within_s


def sit_on_the_right(event: Any) -> None:
    """Change a message of the car."""
    event.driverMonitoringState.isRHD = True


def test_outputs_not_finite_once(tmp_path: Path, row: Row) -> None:
    with world_with_fallback(tmp_path) as world:
        start_ns = time.monotonic_ns()
        world.control.order(Mode.NOT_FINITE, 1, program="primary")
        world.wait_message(lambda message: not message.valid, start_ns)
        check_resumed(world, row, start_ns)
        check_logged(world, row, start_ns)
        assert not any(is_fallback(m.speed_mps) for m in world.recorder.messages)


def test_outputs_not_finite_three_times(tmp_path: Path, row: Row) -> None:
    with world_with_fallback(tmp_path) as world:
        start_ns = time.monotonic_ns()
        world.control.order(Mode.NOT_FINITE, program="primary")
        check_fallback(world, row, start_ns)


def test_outputs_not_finite_without_a_fallback(tmp_path: Path, row: Row) -> None:
    with running_world(tmp_path, faulty=True) as world:
        world.wait_valid()
        start_ns = time.monotonic_ns()
        world.control.order(Mode.NOT_FINITE)
        world.wait_message(lambda message: not message.valid, start_ns)
        invalid_ns = time.monotonic_ns()
        time.sleep(0.5)
        seen = world.recorder.since(invalid_ns)
        assert len(seen) >= 5
        assert not any(message.valid for message in seen)
        check_logged(world, row, start_ns)
        world.control.clear()
        check_resumed(world, row, time.monotonic_ns())


def test_fallback_is_kept_when_the_process_dies(tmp_path: Path, row: Row) -> None:
    with world_with_fallback(tmp_path) as world:
        world.control.order(Mode.DEVICE_LOST, 1, program="primary")
        start_ns = time.monotonic_ns()
        world.wait_message(lambda message: is_fallback(message.speed_mps), start_ns)
        while not (tmp_path / "state/fallback.json").exists():
            time.sleep(0.01)
            assert time.monotonic_ns() - start_ns < 5e9
        killed = world.service.life
        world.service.signal(9)
        ended_ns = time.monotonic_ns()
        check_resumed(world, row, ended_ns)
        check_logged(world, row, ended_ns)
        assert killed.code == row.exit_code
        time.sleep(0.5)
        new = [
            m
            for m in world.recorder.since(ended_ns)
            if m.arrived_ns > world.service.life.started_ns
        ]
        assert new
        assert all(is_fallback(message.speed_mps) for message in new)


def test_primary_is_slow_now_and_then(tmp_path: Path, row: Row) -> None:
    """Runs of 120 ms are late, not hung: ids stay in order, and the model is kept."""
    with world_with_fallback(tmp_path) as world:
        start_ns = time.monotonic_ns()
        world.control.order(Mode.SLOW, 5, ms=120, program="primary")
        while world.control.happened < 5:
            time.sleep(0.01)
            assert time.monotonic_ns() - start_ns < 10e9
        check_resumed(world, row, time.monotonic_ns())
        seen = world.recorder.since(start_ns)
        assert [m.frame_id for m in seen] == sorted({m.frame_id for m in seen})
        assert not any(is_fallback(m.speed_mps) for m in seen)
        check_logged(world, row, start_ns)
