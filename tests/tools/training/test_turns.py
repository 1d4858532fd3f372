"""Painters and learning take turns: no sample is learnt from more often than is said."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tools.training.replay import IMAGES_SHAPE, Replay, Sample, open_replay
from tools.training.turns import MOST_USES, TURN_STEPS, Turns

BATCH = 6


@pytest.fixture
def replay() -> Iterator[Replay]:
    """A small ring, empty."""
    with open_replay(4, 1, 5) as ring:
        yield ring


def paint(replay: Replay, count: int) -> None:
    for _ in range(count):
        replay.put(0, Sample(np.zeros(IMAGES_SHAPE, np.uint8), np.zeros(5, np.float32), 0))


def test_painters_have_their_turn_until_there_is_enough_for_some_steps(replay: Replay) -> None:
    turns = Turns(replay, BATCH)
    for few in range(int(TURN_STEPS * BATCH / MOST_USES)):
        assert replay.produced == few
        assert not turns.take()
        assert not replay.is_enough
        paint(replay, 1)
    taken = 0
    while turns.take():
        assert replay.is_enough
        taken += 1
    assert taken == TURN_STEPS
    assert turns.uses == MOST_USES
    # And the painters' turn is a whole one again, not until the next step.
    assert not replay.is_enough
    paint(replay, int(BATCH / MOST_USES))
    assert not turns.take()


def test_uses_never_exceed_the_most_whatever_painters_do(replay: Replay) -> None:
    rng, turns, taken = np.random.default_rng(0), Turns(replay, BATCH), 0
    for _ in range(300):
        # Painters go on with what they have begun, also while they shall wait.
        paint(replay, int(rng.integers(0, 4 if replay.is_enough else 9)))
        if replay.produced and turns.take():
            taken += 1
            assert turns.uses == taken * BATCH / replay.produced <= MOST_USES
    assert taken > 100


def test_painters_can_be_given_the_time_between_two_steps(replay: Replay) -> None:
    turns = Turns(replay, BATCH)
    paint(replay, 60)
    assert turns.take()
    turns.give()
    assert not replay.is_enough
    # There is enough all the same: learning goes on when it comes back.
    assert turns.take()
    assert replay.is_enough
