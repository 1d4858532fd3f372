"""Rows about the device and the model on it: errors, hangs, values; alone and with a fallback."""

import time
from pathlib import Path

import pytest

import runtime
from runtime.format.parts import ExpectedValues, TestVector, plain_self_test, positions
from runtime.run.entry import tensor_spec
from runtime.run.selftest import seeded_inputs, seeded_states
from tests.faults.checks import check_fallback_alone, check_logged, check_resumed
from tests.faults.faulty_opencl import Control, Mode
from tests.faults.table import Row
from tests.faults.world import (
    FALLBACK_MPS,
    PRIMARY_MPS,
    ROOM,
    SHORT_RUNS,
    World,
    is_fallback,
    running_world,
    world_with_fallback,
)
from tests.tools.tiny_driving import write_tiny_driving

pytestmark = [pytest.mark.opencl, pytest.mark.alone, pytest.mark.slow]
# The fault's own frame, and two more, until the fallback model has spoken: the three.
FRAMES_TO_FALLBACK = 3
SEED = 5


def with_self_test(path: Path) -> Path:
    """Write the primary model anew, with the self-test that a device without faults passes."""
    write_tiny_driving(path, ROOM, speed_mps=PRIMARY_MPS, name="primary")
    with runtime.load_program(path) as program:
        buffers = program.manifest.buffers
        states = [tensor_spec(b) for b in buffers if b.kind == "state"]
        for name, value in seeded_states(states, SEED).items():
            program.set_state(name, value)
        outputs = program.run(seeded_inputs(program.entry_inputs("run"), SEED), "run")
        expected = tuple(
            ExpectedValues(
                "output", name, array.shape, array.ravel()[positions(array.size)].copy(), 1e-3, 0.0
            )
            for name, array in outputs.items()
        )
    vector = TestVector(SEED, "run", expected)
    plain = plain_self_test((vector,))
    return write_tiny_driving(path, ROOM, speed_mps=PRIMARY_MPS, name="primary", self_test=plain)


def miscompiled(directory: Path) -> None:
    """Let the device compute something else with the primary model."""
    with_self_test(directory / "primary.pkl")
    Control(directory / "control").order(Mode.WRONG, program="primary")


def test_self_test_fails_with_a_fallback(tmp_path: Path, row: Row) -> None:
    with running_world(tmp_path, fallback=True, faulty=True, before=miscompiled) as world:
        check_fallback_alone(world, row)


def test_self_test_fails_without_a_fallback(tmp_path: Path, row: Row) -> None:
    with running_world(tmp_path, faulty=True, restarts=True, before=miscompiled) as world:
        failed = world.service.life
        check_logged(world, row, 0, 15.0)
        # The driver is another one at the next start, say.
        world.control.clear()
        check_resumed(world, row)
        assert failed.code == row.exit_code
        assert not world.service.lines("Traceback")


def check_fallback(world: World, row: Row, most: int = FRAMES_TO_FALLBACK) -> None:
    """The fallback model speaks within some frames, in the same process, and for good."""
    start_ns = time.monotonic_ns()
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


MODES = pytest.mark.parametrize("mode", [Mode.DEVICE_LOST, Mode.OUT_OF_RESOURCES])


@MODES
def test_run_fails_with_a_fallback(tmp_path: Path, row: Row, mode: Mode) -> None:
    with world_with_fallback(tmp_path) as world:
        world.control.order(mode, program="primary")
        check_fallback(world, row)


def check_restarted(world: World, row: Row, mode: Mode) -> None:
    """One run that fails ends the process, and the next one drives on."""
    world.wait_valid()
    failed = world.service.life
    start_ns = time.monotonic_ns()
    world.control.order(mode, 1)
    check_resumed(world, row, start_ns)
    assert failed.code == row.exit_code
    check_logged(world, row, start_ns)
    assert not world.service.lines("Traceback")


@MODES
def test_run_fails_without_a_fallback(tmp_path: Path, row: Row, mode: Mode) -> None:
    with running_world(tmp_path, faulty=True, restarts=True) as world:
        check_restarted(world, row, mode)


def test_run_fails_with_a_fallback_that_is_too_small(tmp_path: Path, row: Row) -> None:
    """It is found before it is needed; a fault then ends the process, which is started again."""

    def shrink(directory: Path) -> None:
        write_tiny_driving(directory / "safe.pkl", (64, 32), speed_mps=FALLBACK_MPS, name="safe")

    metrics = tmp_path / "modeld.prom"
    more = f'{SHORT_RUNS}\nmetrics_file = "{metrics}"\n'
    with running_world(
        tmp_path, more=more, fallback=True, faulty=True, restarts=True, before=shrink
    ) as world:
        world.wait_valid()
        world.service.wait_line(row.logged[0])
        # Who looks at figures and health messages hears of it, too; these come once a second.
        figure = 'modeld_start_problems{daemon="driving"} 1\n'
        world.service.wait(
            lambda: metrics.exists() and figure in metrics.read_text("utf-8"), 5.0, "no figure"
        )
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
        world.service.wait(lambda: failed.ended_ns, 10.0, "no end of the process")
        assert failed.code == row.exit_code
        time.sleep(0.5)
        world.control.clear()
        check_resumed(world, row)
        assert is_fallback(world.recorder.messages[-1].speed_mps)


def test_kernel_never_returns_with_a_fallback(tmp_path: Path, row: Row) -> None:
    with world_with_fallback(tmp_path) as world:
        world.control.order(Mode.HANG, 1, program="primary")
        # 200 ms of waiting, in which frames go by, and two frames more.
        check_fallback(world, row, most=4 + FRAMES_TO_FALLBACK)
        # `check_fallback` has let the call return: nothing of it is published.
        assert world.service.pings(time.monotonic_ns() - 2_000_000_000)


def test_kernel_never_returns_without_a_fallback(tmp_path: Path, row: Row) -> None:
    with running_world(tmp_path, more=SHORT_RUNS, faulty=True, restarts=True) as world:
        check_restarted(world, row, Mode.HANG)


def test_kernel_holds_the_device_with_a_fallback(tmp_path: Path, row: Row) -> None:
    """PoCL has one set of workers, so the fallback's run waits too; a new process has its own."""

    def hang(directory: Path) -> None:
        path = directory / "primary.pkl"
        write_tiny_driving(path, ROOM, speed_mps=PRIMARY_MPS, name="primary", hangs=True)

    with running_world(
        tmp_path, more=SHORT_RUNS, fallback=True, restarts=True, before=hang
    ) as world:
        world.wait_valid()
        hung = world.service.life
        start_ns = time.monotonic_ns()
        # The car goes on saying so: only the fallback model can drive it.
        world.vehicle.changes["driverMonitoringState"] = {"isRHD": True}
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
        world.control.order(Mode.NOT_FINITE, program="primary")
        check_fallback(world, row)


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
        check_resumed(world, row)


def test_fallback_is_kept_when_the_process_dies(tmp_path: Path, row: Row) -> None:
    with world_with_fallback(tmp_path) as world:
        world.control.order(Mode.DEVICE_LOST, 1, program="primary")
        start_ns = time.monotonic_ns()
        world.wait_message(lambda message: is_fallback(message.speed_mps), start_ns)
        world.service.wait((tmp_path / "state/fallback.json").exists, 5.0, "no note")
        killed = world.service.life
        world.service.signal(9)
        ended_ns = time.monotonic_ns()
        check_resumed(world, row, ended_ns)
        check_logged(world, row, ended_ns)
        assert killed.code == row.exit_code
        time.sleep(0.5)
        new = world.recorder.since(world.service.life.started_ns)
        assert new
        assert all(is_fallback(message.speed_mps) for message in new)


def test_primary_is_slow_now_and_then(tmp_path: Path, row: Row) -> None:
    """Runs of 120 ms are late, not hung: ids stay in order, and the model is kept."""
    with world_with_fallback(tmp_path) as world:
        start_ns = time.monotonic_ns()
        world.control.order(Mode.SLOW, 5, ms=120, program="primary")
        world.service.wait(lambda: world.control.happened == 5, 10.0, "no five slow runs")
        check_resumed(world, row)
        seen = world.recorder.since(start_ns)
        assert [m.frame_id for m in seen] == sorted({m.frame_id for m in seen})
        assert not any(is_fallback(m.speed_mps) for m in seen)
        check_logged(world, row, start_ns)
