"""The frame path allocates nothing that grows, also without a collector that looks for cycles."""

import gc
import logging
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import modeld
from tests.modeld.bench import Bench, Log

# Not any folder of the name: a checkout is called so, too.
PACKAGE = Path(modeld.__file__).parent
# Windows of the rates are full by then.
WARM_FRAMES = 1200
FRAMES = 2000
# Counters of Python reach new sizes, and lists their next step; a leak of one object a frame would
# be FRAMES objects and 100 kB.
MOST_OBJECTS = 50
MOST_BYTES = 20_000


@contextmanager
def traced() -> Iterator[None]:
    """No collector, as in the daemon; memory is traced."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.fixture
def no_records() -> Iterator[None]:
    """Pytest keeps them."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def drive(bench: Bench, frames: range) -> None:
    """Frames as in a drive, with now and then what goes wrong in one."""
    for frame_id in frames:
        bench.send("carState", vEgo=20.0)
        bench.send("carControl", latActive=True)
        if frame_id % 5 == 0:
            bench.calibrate()
        if frame_id % 50 == 7:
            bench.daemon.step()  # no frame came
            continue
        if frame_id % 50 == 17:
            bench.bus.send("liveDelay", b"no message")
        bench.program.vision[0, 0] = np.nan if frame_id % 50 == 27 else 0.0
        bench.step(frame_id)
        bench.program.calls.clear()


@pytest.mark.slow
@pytest.mark.usefixtures("no_records")
def test_neither_objects_nor_bytes_grow(bench: Bench) -> None:
    with traced():
        drive(bench, range(WARM_FRAMES))
        objects, (held, _) = len(gc.get_objects()), tracemalloc.get_traced_memory()
        drive(bench, range(WARM_FRAMES, WARM_FRAMES + FRAMES))
        grown = len(gc.get_objects()) - objects
        grown_bytes = tracemalloc.get_traced_memory()[0] - held
    assert grown <= MOST_OBJECTS
    assert grown_bytes <= MOST_BYTES
    assert bench.daemon.state.published > FRAMES // 2


def test_the_frame_path_keeps_no_memory_and_logs_nothing(bench: Bench, caplog: Log) -> None:
    def frames(first: int, last: int) -> None:
        for frame_id in range(first, last):
            bench.calibrate()
            bench.step(frame_id)
            bench.program.calls.clear()

    frames(0, 200)
    in_modeld = [tracemalloc.Filter(inclusive=True, filename_pattern=f"{PACKAGE}/*")]
    with traced():
        frames(200, 220)  # what is kept from frame to frame is now known to the tracer
        before = tracemalloc.take_snapshot().filter_traces(in_modeld)
        with caplog.at_level(logging.DEBUG):
            frames(220, 320)
        after = tracemalloc.take_snapshot().filter_traces(in_modeld)
    grown = sum(found.size_diff for found in after.compare_to(before, "filename"))
    # One object more in each of the 100 frames would be 4 KB or more.
    assert grown < 2000
    assert caplog.records == []
