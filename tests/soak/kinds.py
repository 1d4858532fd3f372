"""The faults of a soak: rows of docs/faults.md that take seconds, and what may be heard meanwhile.

Each function disturbs a world, takes the fault back, and returns when that was, ns of the monotonic
clock: from then on the bound of its row counts.
"""

from __future__ import annotations

import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import zmq

from cereal.frames import nv12_format
from tests.faults.faulty_opencl import Mode
from tests.faults.table import Row, rows
from tests.faults.world import World

Meanwhile = Literal["anything", "invalid", "nothing", "valid"]
Disturb = Callable[[World, random.Random], int]
# Beyond the bound of any input's age.
OUTAGE_S = 6.0


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    Attributes:
        test: of its row.
        disturb: does it and undoes it.
        meanwhile: what messages may be like until it is undone.
        grace_s: how long after its start that begins to hold.
        codes: exit codes that it may cause.
        falls_back: the fallback model drives on, until the drive ends.
        moves_ids: frame ids may go back.
        ages: frames may be older than they ever are, or have stamps of another time.
    """

    test: str
    disturb: Disturb
    meanwhile: Meanwhile = "anything"
    grace_s: float = 0.3
    codes: tuple[int, ...] = ()
    falls_back: bool = False
    moves_ids: bool = False
    ages: bool = False

    @property
    def row(self) -> Row:
        """Of the table."""
        return rows()[self.test]


def _well(world: World) -> int:
    """Take back what cameras, car and device do wrong."""
    world.control.clear()
    world.cameras.reset()
    world.vehicle.reset()
    return time.monotonic_ns()


def _late(world: World, rng: random.Random) -> int:
    world.cameras.late_ns = rng.randrange(100, 250) * 1_000_000
    time.sleep(1.0)
    return _well(world)


def _frozen(world: World, rng: random.Random) -> int:
    world.cameras.repeating = True
    time.sleep(rng.uniform(0.5, 2.0))
    return _well(world)


def _still(world: World, _rng: random.Random) -> int:
    world.cameras.still = True
    time.sleep(2.5)
    return _well(world)


def _silent(world: World, rng: random.Random) -> int:
    world.cameras.paused.update(("road", "wideRoad"))
    time.sleep(rng.uniform(0.5, 3.0))
    return _well(world)


def _no_extra(world: World, rng: random.Random) -> int:
    world.cameras.paused.add("wideRoad")
    time.sleep(rng.uniform(1.0, 2.0))
    return _well(world)


def _restart(world: World, _rng: random.Random) -> int:
    world.cameras.restart()
    return time.monotonic_ns()


def _restart_from_1(world: World, _rng: random.Random) -> int:
    world.cameras.restart(first_id=1)
    return time.monotonic_ns()


def _unknown_size(world: World, rng: random.Random) -> int:
    world.cameras.restart(nv12_format(192, 96))
    time.sleep(rng.uniform(1.0, 2.0))
    return _well(world)


def _too_large(world: World, rng: random.Random) -> int:
    world.cameras.restart(nv12_format(1024, 512))
    time.sleep(rng.uniform(1.0, 2.0))
    return _well(world)


def _overwritten(world: World, _rng: random.Random) -> int:
    world.control.order(Mode.SLOW, 1, ms=40)
    deadline = time.monotonic() + 2.0
    while not world.control.happened and time.monotonic() < deadline:
        time.sleep(0.001)
    world.cameras.overwrite_newest()
    # The model sees such an image for some frames.
    time.sleep(0.1)
    return _well(world)


def _damaged_records(world: World, rng: random.Random) -> int:
    for _ in range(10):
        values = [rng.choice((0, 7, 1 << 40, (1 << 64) - 1))] * 4
        world.cameras.write_words("road", world.cameras.record_word("road"), values)
        time.sleep(0.02)
    return time.monotonic_ns()


def _damaged_head(world: World, rng: random.Random) -> int:
    for head in (1 << 40, rng.randrange(1, 50)):
        world.cameras.write_words("road", 8, [head])
        time.sleep(0.3)
    return time.monotonic_ns()


def _stamps(world: World, rng: random.Random) -> int:
    world.cameras.offset_ns = rng.choice((3600, -600, -1)) * 1_000_000_000
    time.sleep(1.0)
    return _well(world)


def _missing(world: World, rng: random.Random) -> int:
    world.cameras.next_id += rng.randrange(1, 40)
    return time.monotonic_ns()


def _ids_back(world: World, rng: random.Random) -> int:
    world.cameras.next_id = max(1, world.cameras.next_id - rng.randrange(5, 50))
    return time.monotonic_ns()


def _no_calibration(world: World, _rng: random.Random) -> int:
    world.vehicle.stopped.add("liveCalibration")
    time.sleep(OUTAGE_S + 1.0)
    return _well(world)


def _no_car_state(world: World, _rng: random.Random) -> int:
    world.vehicle.stopped.add("carState")
    time.sleep(OUTAGE_S / 2)
    return _well(world)


def _out_of_bounds(world: World, rng: random.Random) -> int:
    def angles(event: Any) -> None:
        event.liveCalibration.rpyCalib = [0.0, 1.5, 0.0]

    def speed(event: Any) -> None:
        event.carState.vEgo = float("nan")

    service, change = rng.choice((("liveCalibration", angles), ("carState", speed)))
    world.vehicle.changes[service] = change
    time.sleep(2.0)
    return _well(world)


def _garbage(world: World, rng: random.Random) -> int:
    world.vehicle.junk["carState"] = rng.randbytes(rng.randrange(1, 10_000))
    time.sleep(rng.uniform(0.5, 1.5))
    return _well(world)


def _stalled_subscriber(world: World, _rng: random.Random) -> int:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, 1)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(f"ipc://{world.directory}/bus/modelV2")
    time.sleep(2.0)
    socket.close()
    context.term()
    return time.monotonic_ns()


def _paused_process(world: World, rng: random.Random) -> int:
    world.service.signal(signal.SIGSTOP)
    time.sleep(rng.uniform(0.2, 0.8))
    world.service.signal(signal.SIGCONT)
    return time.monotonic_ns()


def _ended(world: World, timeout_s: float = 8.0) -> int:
    """Wait until the process that lives now has ended; return when it did."""
    life = world.service.life
    deadline = time.monotonic() + timeout_s
    while life.code is None and time.monotonic() < deadline:
        time.sleep(0.005)
    return life.ended_ns or time.monotonic_ns()


def _stopped_process(world: World, _rng: random.Random) -> int:
    world.service.signal(signal.SIGSTOP, asked=True)
    return _ended(world)


def _killed_process(world: World, _rng: random.Random) -> int:
    world.service.signal(signal.SIGKILL, asked=True)
    return _ended(world)


def _busy(_world: World, rng: random.Random) -> int:
    code = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(code) for _ in range(4)]
    time.sleep(rng.uniform(1.0, 2.0))
    for process in processes:
        process.kill()
        process.wait()
    return time.monotonic_ns()


def _no_memory(world: World, _rng: random.Random) -> int:
    pid = world.service.pid
    held = resource.prlimit(pid, resource.RLIMIT_AS)
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[0])
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize(), held[1]))
    time.sleep(1.5)
    resource.prlimit(pid, resource.RLIMIT_AS, held)
    return time.monotonic_ns()


def _no_descriptors(world: World, _rng: random.Random) -> int:
    pid = world.service.pid
    held = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    count = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (count, held[1]))
    world.cameras.restart()
    time.sleep(1.0)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, held)
    return time.monotonic_ns()


def _model_overwritten(world: World, _rng: random.Random) -> int:
    model = world.directory / "primary.pkl"
    kept = model.read_bytes()
    with model.open("r+b") as file:
        file.write(b"\0" * len(kept))
    time.sleep(1.0)
    model.write_bytes(kept)
    return time.monotonic_ns()


def _not_finite_once(world: World, _rng: random.Random) -> int:
    world.control.order(Mode.NOT_FINITE, 1, program="primary")
    time.sleep(0.15)
    return time.monotonic_ns()


def _not_finite(world: World, _rng: random.Random) -> int:
    start_ns = time.monotonic_ns()
    world.control.order(Mode.NOT_FINITE, program="primary")
    return start_ns


def _run_fails(world: World, rng: random.Random) -> int:
    start_ns = time.monotonic_ns()
    mode = rng.choice((Mode.DEVICE_LOST, Mode.OUT_OF_RESOURCES))
    world.control.order(mode, program="primary")
    return start_ns


def _device_lost(world: World, _rng: random.Random) -> int:
    world.service.life.asked = True
    world.control.order(Mode.DEVICE_LOST)
    _ended(world)
    world.control.clear()
    return time.monotonic_ns()


def _hang(world: World, _rng: random.Random) -> int:
    start_ns = time.monotonic_ns()
    world.control.order(Mode.HANG, 1, program="primary")
    return start_ns


def _slow_runs(world: World, _rng: random.Random) -> int:
    world.control.order(Mode.SLOW, 5, ms=120, program="primary")
    deadline = time.monotonic() + 3.0
    while world.control.happened < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    return time.monotonic_ns()


KINDS = (
    Kind("test_late_frames", _late, ages=True),
    Kind("test_frozen_frames", _frozen, "nothing"),
    Kind("test_pictures_stay_the_same", _still, "invalid", 1.6),
    Kind("test_camera_sends_nothing", _silent, "nothing"),
    Kind("test_extra_camera_sends_nothing", _no_extra, "invalid", 0.2),
    Kind("test_camera_restarts_with_the_same_size", _restart),
    Kind("test_camera_restarts_and_counts_from_1", _restart_from_1, moves_ids=True),
    Kind("test_camera_restarts_with_a_size_that_is_not_known", _unknown_size, "nothing", 0.5),
    Kind("test_camera_restarts_too_large", _too_large, "nothing", 0.5),
    Kind("test_frame_is_overwritten_while_it_is_used", _overwritten),
    Kind("test_record_of_a_frame_is_damaged", _damaged_records),
    Kind("test_head_of_a_ring_is_damaged", _damaged_head, moves_ids=True, ages=True),
    Kind("test_stamps_of_frames_jump", _stamps, ages=True),
    Kind("test_frames_are_missing", _missing),
    Kind("test_frame_ids_go_back", _ids_back, moves_ids=True),
    Kind("test_calibration_stops", _no_calibration, "invalid", OUTAGE_S),
    Kind("test_car_state_stops", _no_car_state, "invalid", OUTAGE_S / 2 - 1.0),
    Kind("test_input_is_out_of_bounds", _out_of_bounds, "invalid", 0.8),
    Kind("test_garbage_on_the_bus", _garbage),
    Kind("test_subscriber_stalls", _stalled_subscriber, "valid", 0.0),
    Kind("test_process_is_stopped_for_a_moment", _paused_process, ages=True),
    Kind("test_process_is_stopped_for_long", _stopped_process, codes=(-signal.SIGABRT,), ages=True),
    Kind("test_process_is_killed", _killed_process, codes=(-signal.SIGKILL,)),
    Kind("test_processors_are_taken", _busy, ages=True),
    Kind("test_no_more_memory_can_be_had", _no_memory, "valid", 0.0),
    Kind("test_no_more_descriptors_can_be_had", _no_descriptors),
    Kind("test_model_file_changes_while_it_runs", _model_overwritten, "valid", 0.0),
    Kind("test_outputs_not_finite_once", _not_finite_once),
    Kind("test_outputs_not_finite_three_times", _not_finite, falls_back=True),
    Kind("test_run_fails_with_a_fallback", _run_fails, falls_back=True),
    Kind("test_device_is_lost_for_all_models", _device_lost, codes=(4,), falls_back=True),
    Kind("test_kernel_never_returns_with_a_fallback", _hang, falls_back=True),
    Kind("test_primary_is_slow_now_and_then", _slow_runs),
)
