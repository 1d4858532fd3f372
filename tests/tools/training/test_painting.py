"""Samples are painted into a ring, drawn from it whole, and no more often than is said."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tools.errors import TrainingError
from tools.lib.processes import IsStopped, Send
from tools.simulator.training.machine import MOST_USES, TURN_STEPS, Turns
from tools.simulator.training.samples.replay import (
    IMAGES_SHAPE,
    PaintingPlan,
    Replay,
    ReplayPlan,
    Sample,
    fill,
    open_crew,
    open_replay,
)

# Until something must have happened that takes no time by itself; as long as one that waits is
# watched.
SOON_S, WHILE_S = 60.0, 0.2
PER_WORLD, BATCH = 3, 6


def sample(value: int) -> Sample:
    """Return a sample all of whose parts say the same."""
    images = np.full(IMAGES_SHAPE, value % 256, np.uint8)
    return Sample(images, np.full(5, value, np.float32), value)


def test_drawn_samples_are_those_written() -> None:
    with open_replay(8, 2, 5) as replay:
        for painter, value in ((0, 0), (0, 1), (0, 2), (1, 9)):
            replay.put(painter, sample(value))
        batch = replay.draw(np.random.default_rng(0), 200)
        assert (replay.produced, replay.held) == (4, 4)
    assert sorted(set(batch.kinds.tolist())) == [0, 1, 2, 9]
    assert (batch.targets == batch.kinds[:, None]).all()
    assert (batch.images == batch.kinds[:, None, None, None, None]).all()


def test_oldest_samples_are_overwritten_and_what_is_being_written_is_not_drawn() -> None:
    with open_replay(4, 1, 5) as replay:
        for value in range(7):
            replay.put(0, sample(value))
        assert (replay.produced, replay.held) == (7, 4)
        assert sorted(replay.targets()[:, 0].tolist()) == [3, 4, 5, 6]
        replay._versions[:4] += 1
        with pytest.raises(TrainingError, match=r"all of them being written; run it again"):
            replay.draw(np.random.default_rng(0), 1)


def test_no_room_is_one_line() -> None:
    match = r"--slots: expected memory for \d+ samples"
    with pytest.raises(TrainingError, match=match) as caught, open_replay(1 << 40, 1, 5):
        pass
    assert "\n" not in str(caught.value)


def write_many(plan: ReplayPlan, painter: int) -> None:
    replay = Replay(plan)
    for value in range(60):
        replay.put(painter, sample(100 * painter + value))


@pytest.mark.slow
def test_writers_in_other_processes_are_seen_and_no_sample_is_torn() -> None:
    context = multiprocessing.get_context("spawn")
    with open_replay(6, 2, 5) as replay:
        writers = [context.Process(target=write_many, args=(replay.plan, p)) for p in range(2)]
        for writer in writers:
            writer.start()
        rng, draws = np.random.default_rng(0), 0
        while any(writer.is_alive() for writer in writers):
            if replay.held:
                batch = replay.draw(rng, 8)
                assert (batch.images == (batch.kinds % 256)[:, None, None, None, None]).all()
                assert (batch.targets == batch.kinds[:, None]).all()
                draws += 1
        for writer in writers:
            writer.join()
        assert [writer.exitcode for writer in writers] == [0, 0]
        assert draws > 0
        assert replay.produced == 120


def toy(number: int) -> Iterator[Sample]:
    """Yield the samples of a world at once."""
    yield from [sample(number)] * PER_WORLD


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.perf_counter() + SOON_S
    while not holds():
        assert time.perf_counter() < end
        time.sleep(0.005)


@contextmanager
def painter(replay: Replay, first: int = 0) -> Iterator[list[Any]]:
    stopped, sent = threading.Event(), list[Any]()
    plan = PaintingPlan(replay.plan, toy, first)
    thread = threading.Thread(target=fill, args=(plan, 0, stopped.is_set, sent.append))
    with pytest.MonkeyPatch.context() as patch:
        # A painter is a process of its own, which stays as polite as it became.
        patch.setattr(os, "nice", lambda _: 19)
        thread.start()
        try:
            yield sent
        finally:
            stopped.set()
            thread.join(SOON_S)
    assert not thread.is_alive()


def test_worlds_are_painted_one_after_the_other() -> None:
    with open_replay(30, 1, 5) as replay:
        with painter(replay, 7) as sent:
            wait_until(lambda: len(sent) > 2)
        assert sent[:3] == [7, 8, 9]
        _, counts = np.unique(replay.targets()[:, 0], return_counts=True)
        assert counts.max() == PER_WORLD


def test_painter_waits_while_there_is_enough_goes_on_and_ends_while_it_waits() -> None:
    def stands() -> bool:
        before = replay.produced
        time.sleep(WHILE_S)
        return replay.produced == before

    with open_replay(6, 1, 5) as replay:
        replay.is_enough = True
        with painter(replay) as sent:
            wait_until(lambda: replay.produced == 1)
            time.sleep(WHILE_S)
            # The sample that was begun is there; the world is not done.
            assert (replay.produced, sent) == (1, [])
            replay.is_enough = False
            wait_until(lambda: len(sent) > 1)
            replay.is_enough = True
            wait_until(stands)
    with open_replay(6, 1, 5) as replay:
        replay.is_enough = True
        with painter(replay) as sent:
            wait_until(lambda: replay.produced == 1)
        # `painter` has seen it end.
        assert (replay.produced, sent) == (1, [])


@pytest.fixture(name="replay")
def small_ring() -> Iterator[Replay]:
    with open_replay(4, 1, 5) as ring:
        yield ring


def paint(replay: Replay, count: int) -> None:
    for _ in range(count):
        replay.put(0, sample(0))


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


def fail(_number: int, _is_stopped: IsStopped, _send: Send) -> None:
    raise ValueError("no such paint")


def wait(_number: int, is_stopped: IsStopped, send: Send) -> None:
    send(os.getpid())
    while not is_stopped():
        time.sleep(0.01)


def test_troubles_of_processes_are_one_line_that_says_how_to_go_on() -> None:
    failed = r"^train: a rendering process failed: ValueError: no such paint$"
    with open_crew(fail, [(0,)]) as crew, pytest.raises(TrainingError, match=failed):
        crew.receive(60.0)
    with open_crew(wait, [(0,)]) as crew:
        (pid,) = crew.receive(60.0)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(TrainingError, match=r"found one dead; is there enough memory"):
            crew.receive(60.0)
