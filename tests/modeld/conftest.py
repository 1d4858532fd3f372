"""What the tests of the daemon share: episodes, pairing, and a daemon to step."""

import logging

import pytest

from cereal.clock import Clock, ManualClock
from modeld.episodes import Episodes
from modeld.frame_sync import CameraSource, FrameSync
from modeld.loop_state import LoopState
from modeld.sync_log import SyncLog
from tests.modeld.bench import Bench


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
def bench() -> Bench:
    return Bench()
