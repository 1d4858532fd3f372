"""A painter fills the ring, waits while there is enough, and ends when it is told to."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tools.training.painting import PaintingPlan, fill
from tools.training.replay import IMAGES_SHAPE, Replay, Sample, open_replay

# Until something must have happened that takes no time by itself.
SOON_S = 60.0
# As long as a painter that waits is watched.
WHILE_S = 0.2
PER_WORLD = 3


def toy(number: int) -> Iterator[Sample]:
    """Yield the samples of a world at once."""
    images = np.zeros(IMAGES_SHAPE, np.uint8)
    for _ in range(PER_WORLD):
        yield Sample(images, np.full(5, number, np.float32), 0)


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for what must come, and fail if it does not."""
    end = time.perf_counter() + SOON_S
    while not holds():
        assert time.perf_counter() < end
        time.sleep(0.005)


@contextmanager
def painter(replay: Replay, first: int = 0) -> Iterator[tuple[threading.Event, list[Any]]]:
    """Paint in a thread; yields what stops it and the numbers of the worlds that it has done."""
    stopped, sent = threading.Event(), list[Any]()
    plan = PaintingPlan(replay.plan, toy, first)
    thread = threading.Thread(target=fill, args=(plan, 0, stopped.is_set, sent.append))
    thread.start()
    try:
        yield stopped, sent
    finally:
        stopped.set()
        thread.join(SOON_S)
    assert not thread.is_alive()


@pytest.fixture(autouse=True)
def _same_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """A painter is a process of its own, which stays as polite as it became."""
    monkeypatch.setattr(os, "nice", lambda _: 19)


def test_worlds_are_painted_one_after_the_other() -> None:
    with open_replay(30, 1, 5) as replay:
        with painter(replay, 7) as (_, sent):
            wait_until(lambda: len(sent) > 2)
        assert sent[:3] == [7, 8, 9]
        _, counts = np.unique(replay.targets()[:, 0], return_counts=True)
        assert counts.max() == PER_WORLD


def test_it_waits_while_there_is_enough_and_then_goes_on() -> None:
    with open_replay(6, 1, 5) as replay:
        replay.is_enough = True
        with painter(replay) as (_, sent):
            wait_until(lambda: replay.produced == 1)
            time.sleep(WHILE_S)
            # The sample that was begun is there; the world is not done.
            assert (replay.produced, sent) == (1, [])
            replay.is_enough = False
            wait_until(lambda: len(sent) > 1)
            replay.is_enough = True
            wait_until(lambda: stands(replay))


def stands(replay: Replay) -> bool:
    """Whether nothing more was painted for a while."""
    before = replay.produced
    time.sleep(WHILE_S)
    return replay.produced == before


def test_it_ends_also_while_it_waits() -> None:
    with open_replay(6, 1, 5) as replay:
        replay.is_enough = True
        with painter(replay) as (_, sent):
            wait_until(lambda: replay.produced == 1)
        # `painter` has seen it end.
        assert (replay.produced, sent) == (1, [])
