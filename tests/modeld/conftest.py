"""Frames and programs for the tests of the daemon."""

import logging
from collections.abc import Callable

import numpy as np
import pytest

from cereal.clock import Clock, ManualClock
from cereal.frames import Frame, FrameFormat, nv12_format
from modeld.episodes import Episodes
from modeld.frame_sync import CameraSource, FrameSync
from modeld.loop_state import LoopState
from modeld.sync_log import SyncLog
from tests.modeld.fake_program import FakeProgram, make_interface


def make_frame(form: FrameFormat, frame_id: int, sof_ns: int | None = None) -> Frame:
    """A frame filled with its id, 50 ms after the previous one unless told otherwise."""
    start_ns = frame_id * 50_000_000 if sof_ns is None else sof_ns
    data = np.full(form.size, frame_id % 256, np.uint8)
    return Frame(data, form, frame_id, start_ns, start_ns + 15_000_000)


def make_episodes(clock: Clock | None = None) -> Episodes:
    """Episodes of a loop of their own, on a clock that stands still unless it is given."""
    return Episodes(clock or ManualClock(), logging.getLogger("modeld.test"), LoopState())


def make_sync(
    main: CameraSource,
    extra: CameraSource | None,
    *,
    timeout_ms: int = 100,
    clock: Clock | None = None,
) -> FrameSync:
    """Pairing of two cameras."""
    return FrameSync(main, extra, SyncLog(make_episodes(clock)), timeout_ms)


@pytest.fixture
def tici_format() -> FrameFormat:
    return nv12_format(1928, 1208)


@pytest.fixture
def small_format() -> FrameFormat:
    """Small enough to fill many frames; its cameras come from the configuration."""
    return nv12_format(64, 32)


@pytest.fixture
def small_program(small_format: FrameFormat) -> FakeProgram:
    return FakeProgram(make_interface(), small_format.size)


@pytest.fixture
def frame_of(small_format: FrameFormat) -> Callable[..., Frame]:
    """Makes a frame of the small format from an id and, optionally, a start-of-frame stamp."""

    def make(frame_id: int, sof_ns: int | None = None) -> Frame:
        return make_frame(small_format, frame_id, sof_ns)

    return make


@pytest.fixture
def tici_program(tici_format: FrameFormat) -> FakeProgram:
    return FakeProgram(make_interface(), tici_format.size)
