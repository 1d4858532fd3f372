"""The ring of samples: what was written is drawn, whole, from several writers."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest

from tools.errors import TrainingError
from tools.training.replay import IMAGES_SHAPE, Replay, ReplayPlan, Sample, open_replay


def sample(value: int, size: int = 5) -> Sample:
    """Return a sample all of whose parts say the same."""
    images = np.full(IMAGES_SHAPE, value % 256, np.uint8)
    return Sample(images, np.full(size, value, np.float32), value)


def test_drawn_samples_are_those_written() -> None:
    with open_replay(8, 2, 5) as replay:
        for value in range(3):
            replay.put(0, sample(value))
        replay.put(1, sample(9))
        batch = replay.draw(np.random.default_rng(0), 200)
        assert (replay.produced, replay.held) == (4, 4)
    assert sorted(set(batch.kinds.tolist())) == [0, 1, 2, 9]
    assert (batch.targets == batch.kinds[:, None]).all()
    assert (batch.images == batch.kinds[:, None, None, None, None]).all()


def test_oldest_samples_are_overwritten() -> None:
    with open_replay(4, 1, 5) as replay:
        for value in range(7):
            replay.put(0, sample(value))
        assert (replay.produced, replay.held) == (7, 4)
        assert sorted(replay.targets()[:, 0].tolist()) == [3, 4, 5, 6]


def test_slot_that_is_being_written_is_not_drawn() -> None:
    with open_replay(2, 1, 5) as replay:
        replay.put(0, sample(1))
        replay._versions[0] += 1
        with pytest.raises(TrainingError, match=r"always being written; run it again"):
            replay.draw(np.random.default_rng(0), 1)


def test_no_room_is_one_line() -> None:
    with (
        pytest.raises(TrainingError, match=r"--slots: expected memory for \d+ samples") as caught,
        open_replay(1 << 40, 1, 5),
    ):
        pass
    assert "\n" not in str(caught.value)


def write_many(plan: ReplayPlan, painter: int) -> None:
    replay = Replay(plan)
    for value in range(60):
        replay.put(painter, sample(100 * painter + value))


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
