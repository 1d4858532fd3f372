"""The faults of a soak: rows of docs/faults.md that take seconds, and what may be heard meanwhile.

Each function disturbs a world, takes the fault back, and returns when that was, ns of the monotonic
clock: from then on the bound of its row counts.
"""

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal

from cereal.frames import nv12_format
from tests.faults.cameras import STREAMS
from tests.faults.disturb import (
    busy_processes,
    no_more_descriptors,
    no_more_memory,
    slow_run,
    stalled_subscriber,
)
from tests.faults.faulty_opencl import Mode
from tests.faults.table import Row, rows
from tests.faults.world import World
from tests.support.waiting import until

Meanwhile = Literal["anything", "invalid", "nothing", "valid"]
Disturb = Callable[[World, random.Random], int]
Begin = Callable[[World, random.Random], object]
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


def _lasting(begin: Begin, least_s: float, most_s: float | None = None) -> Disturb:
    """Begin what cameras, car or device do wrong, and take it back after a time."""

    def disturb(world: World, rng: random.Random) -> int:
        begin(world, rng)
        time.sleep(rng.uniform(least_s, least_s if most_s is None else most_s))
        return _well(world)

    return disturb


def _while(fault: Callable[[World], AbstractContextManager[None]], seconds: float) -> Disturb:
    """Let a fault of the process or its neighbours last for a time."""

    def disturb(world: World, _rng: random.Random) -> int:
        with fault(world):
            time.sleep(seconds)
        return time.monotonic_ns()

    return disturb


def _at_once(begin: Begin) -> Disturb:
    """Do what is over when it is done."""

    def disturb(world: World, rng: random.Random) -> int:
        begin(world, rng)
        return time.monotonic_ns()

    return disturb


def _for_good(begin: Begin) -> Disturb:
    """Begin what does not end: its bound counts from its start."""

    def disturb(world: World, rng: random.Random) -> int:
        start_ns = time.monotonic_ns()
        begin(world, rng)
        return start_ns

    return disturb


def _ordered(*modes: Mode, times: int | None = None) -> Begin:
    """Let one of the modes happen to runs of the primary model."""

    def begin(world: World, rng: random.Random) -> None:
        more = () if times is None else (times,)
        world.control.order(rng.choice(modes), *more, program="primary")

    return begin


def _late(world: World, rng: random.Random) -> None:
    world.cameras.late_ns = rng.randrange(100, 250) * 1_000_000


def _frozen(world: World, _rng: random.Random) -> None:
    world.cameras.repeating = True


def _still(world: World, _rng: random.Random) -> None:
    world.cameras.still = True


def _stamps(world: World, rng: random.Random) -> None:
    world.cameras.offset_ns = rng.choice((3600, -600, -1)) * 1_000_000_000


def _missing(world: World, rng: random.Random) -> None:
    world.cameras.next_id += rng.randrange(1, 40)


def _ids_back(world: World, rng: random.Random) -> None:
    world.cameras.next_id = max(1, world.cameras.next_id - rng.randrange(5, 50))


def _overwritten(world: World, _rng: random.Random) -> None:
    slow_run(world, ms=40)
    world.cameras.overwrite_newest()


def _damaged_records(world: World, rng: random.Random) -> None:
    for _ in range(10):
        values = [rng.choice((0, 7, 1 << 40, (1 << 64) - 1))] * 4
        world.cameras.write_words("road", world.cameras.record_word("road"), values)
        time.sleep(0.02)


def _damaged_head(world: World, rng: random.Random) -> None:
    for head in (1 << 40, rng.randrange(1, 50)):
        world.cameras.write_words("road", 8, [head])
        time.sleep(0.3)


def _out_of_bounds(world: World, rng: random.Random) -> None:
    angles, speed = {"rpyCalib": [0.0, 1.5, 0.0]}, {"vEgo": float("nan")}
    service, change = rng.choice((("liveCalibration", angles), ("carState", speed)))
    world.vehicle.changes[service] = change


def _garbage(world: World, rng: random.Random) -> None:
    world.vehicle.junk["carState"] = rng.randbytes(rng.randrange(1, 10_000))


def _paused_process(world: World, rng: random.Random) -> None:
    world.service.signal(signal.SIGSTOP)
    time.sleep(rng.uniform(0.2, 0.8))
    world.service.signal(signal.SIGCONT)


def _ended(world: World, timeout_s: float = 8.0) -> int:
    """Wait until the process that lives now has ended; return when it did."""
    life = world.service.life
    return until(lambda: life.ended_ns, timeout_s) or time.monotonic_ns()


def _signalled(number: signal.Signals) -> Disturb:
    """Send a signal that the process ends by, of itself or as the watchdog acts."""

    def disturb(world: World, _rng: random.Random) -> int:
        world.service.signal(number, asked=True)
        return _ended(world)

    return disturb


@contextmanager
def _model_overwritten(world: World) -> Iterator[None]:
    model = world.directory / "primary.pkl"
    kept = model.read_bytes()
    with model.open("r+b") as file:
        file.write(b"\0" * len(kept))
    yield
    model.write_bytes(kept)


@contextmanager
def _without_descriptors(world: World) -> Iterator[None]:
    with no_more_descriptors(world):
        world.cameras.restart()
        yield


def _device_lost(world: World, _rng: random.Random) -> None:
    world.service.life.asked = True
    world.control.order(Mode.DEVICE_LOST)
    _ended(world)
    world.control.clear()


def _slow_runs(world: World, _rng: random.Random) -> None:
    world.control.order(Mode.SLOW, 5, ms=120, program="primary")
    until(lambda: world.control.happened == 5, 3.0)


KINDS = (
    Kind("test_late_frames", _lasting(_late, 1.0), ages=True),
    Kind("test_frozen_frames", _lasting(_frozen, 0.5, 2.0), "nothing"),
    Kind("test_pictures_stay_the_same", _lasting(_still, 2.5), "invalid", 1.6),
    Kind(
        "test_camera_sends_nothing",
        _lasting(lambda w, _: w.cameras.paused.update(STREAMS), 0.5, 3.0),
        "nothing",
    ),
    Kind(
        "test_extra_camera_sends_nothing",
        _lasting(lambda w, _: w.cameras.paused.add("wideRoad"), 1.0, 2.0),
        "invalid",
        0.2,
    ),
    Kind("test_camera_restarts_with_the_same_size", _at_once(lambda w, _: w.cameras.restart())),
    Kind(
        "test_camera_restarts_and_counts_from_1",
        _at_once(lambda w, _: w.cameras.restart(first_id=1)),
        moves_ids=True,
    ),
    Kind(
        "test_camera_restarts_with_a_size_that_is_not_known",
        _lasting(lambda w, _: w.cameras.restart(nv12_format(192, 96)), 1.0, 2.0),
        "nothing",
        0.5,
    ),
    Kind(
        "test_camera_restarts_too_large",
        _lasting(lambda w, _: w.cameras.restart(nv12_format(1024, 512)), 1.0, 2.0),
        "nothing",
        0.5,
    ),
    Kind("test_frame_is_overwritten_while_it_is_used", _lasting(_overwritten, 0.1)),
    Kind("test_record_of_a_frame_is_damaged", _at_once(_damaged_records)),
    Kind("test_head_of_a_ring_is_damaged", _at_once(_damaged_head), moves_ids=True, ages=True),
    Kind("test_stamps_of_frames_jump", _lasting(_stamps, 1.0), ages=True),
    Kind("test_frames_are_missing", _at_once(_missing)),
    Kind("test_frame_ids_go_back", _at_once(_ids_back), moves_ids=True),
    Kind(
        "test_calibration_stops",
        _lasting(lambda w, _: w.vehicle.stopped.add("liveCalibration"), OUTAGE_S + 1.0),
        "invalid",
        OUTAGE_S,
    ),
    Kind(
        "test_car_state_stops",
        _lasting(lambda w, _: w.vehicle.stopped.add("carState"), OUTAGE_S / 2),
        "invalid",
        OUTAGE_S / 2 - 1.0,
    ),
    Kind("test_input_is_out_of_bounds", _lasting(_out_of_bounds, 2.0), "invalid", 0.8),
    Kind("test_garbage_on_the_bus", _lasting(_garbage, 0.5, 1.5)),
    Kind("test_subscriber_stalls", _while(stalled_subscriber, 2.0), "valid", 0.0),
    Kind("test_process_is_stopped_for_a_moment", _at_once(_paused_process), ages=True),
    Kind(
        "test_process_is_stopped_for_long",
        _signalled(signal.SIGSTOP),
        codes=(-signal.SIGABRT,),
        ages=True,
    ),
    Kind("test_process_is_killed", _signalled(signal.SIGKILL), codes=(-signal.SIGKILL,)),
    Kind("test_processors_are_taken", _while(lambda _: busy_processes(4), 1.5), ages=True),
    Kind("test_no_more_memory_can_be_had", _while(no_more_memory, 1.5), "valid", 0.0),
    Kind("test_no_more_descriptors_can_be_had", _while(_without_descriptors, 1.0)),
    Kind("test_model_file_changes_while_it_runs", _while(_model_overwritten, 1.0), "valid", 0.0),
    Kind("test_outputs_not_finite_once", _lasting(_ordered(Mode.NOT_FINITE, times=1), 0.15)),
    Kind(
        "test_outputs_not_finite_three_times", _for_good(_ordered(Mode.NOT_FINITE)), falls_back=True
    ),
    Kind(
        "test_run_fails_with_a_fallback",
        _for_good(_ordered(Mode.DEVICE_LOST, Mode.OUT_OF_RESOURCES)),
        falls_back=True,
    ),
    Kind("test_device_is_lost_for_all_models", _at_once(_device_lost), codes=(4,), falls_back=True),
    Kind(
        "test_kernel_never_returns_with_a_fallback",
        _for_good(_ordered(Mode.HANG, times=1)),
        falls_back=True,
    ),
    Kind("test_primary_is_slow_now_and_then", _at_once(_slow_runs)),
)
