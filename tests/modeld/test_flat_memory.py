"""The frame path allocates nothing that grows, also without a collector that looks for cycles."""

import gc
import logging
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from cereal.frames import Frame
from modeld.config import Config
from tests.modeld.fake_program import FakeProgram
from tests.modeld.test_daemon import CAMERAS, Bench

# Windows of the rates are full by then.
WARM_FRAMES = 1200
FRAMES = 2000
# Counters of Python reach new sizes, and lists their next step; a leak of one object a frame would
# be FRAMES objects and 100 kB.
MOST_OBJECTS = 50
MOST_BYTES = 20_000


@pytest.fixture
def alone() -> Iterator[None]:
    """No collector, as in the daemon; no log records either, as pytest keeps them."""
    gc.collect()
    gc.disable()
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    gc.enable()


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
            bench.car.send("liveDelay", b"no message")
        value = np.nan if frame_id % 50 == 27 else 0.0
        bench.program.vision[0, 0] = value
        bench.step(frame_id)
        bench.messages()
        bench.program.calls.clear()


@pytest.mark.usefixtures("alone")
def test_neither_objects_nor_bytes_grow(
    small_program: FakeProgram, frame_of: Callable[..., Frame]
) -> None:
    bench = Bench(small_program, frame_of, Config(cameras=CAMERAS))
    tracemalloc.start()
    try:
        drive(bench, range(WARM_FRAMES))
        objects, (held, _) = len(gc.get_objects()), tracemalloc.get_traced_memory()
        drive(bench, range(WARM_FRAMES, WARM_FRAMES + FRAMES))
        grown = len(gc.get_objects()) - objects
        grown_bytes = tracemalloc.get_traced_memory()[0] - held
    finally:
        tracemalloc.stop()
    assert grown <= MOST_OBJECTS
    assert grown_bytes <= MOST_BYTES
    assert bench.daemon.state.published > FRAMES // 2
