"""What the tests of the daemon share: episodes, pairing, and a daemon to step."""

import logging
from pathlib import Path

import pytest

from cereal.cameras import CameraSource
from cereal.clock import Clock, ManualClock
from modeld.frames.frame_log import SyncLog
from modeld.frames.frame_sync import FrameSync
from modeld.state.episodes import Episodes
from modeld.state.loop_state import LoopState
from modeld.store.model_store import ModelStore
from modeld.store.records import ModelId
from tests.modeld.bench import Bench, small_artifacts


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


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """A store of a and b, of which b is selected and a was before; who waits gives up at once."""
    made = ModelStore(tmp_path / "store", lock_wait_s=0.1)
    for name in "ab":
        model, artifact = ModelId(name, "1"), small_artifacts() / f"{name}.pkl"
        made.add(artifact, model, now_s=0, self_test=lambda _path: None)
        made.select(model, "driving", self_test=lambda _path: None)
    return made
