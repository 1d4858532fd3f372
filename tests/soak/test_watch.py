"""What a soak takes for a broken promise: a fault excuses what it may cause, and nothing else."""

from __future__ import annotations

from typing import cast

import pytest

from tests.faults.recorder import Message
from tests.faults.world import PRIMARY_MPS, World
from tests.soak.kinds import KINDS
from tests.soak.watch import NS_PER_S, Fault, Watch

MS = 1_000_000
OLD, BACK = "is 700 ms old", "after 106"


def judged(test: str) -> str:
    """Judge a frame of 700 ms and an id that falls, both during a fault; return what is wrong."""
    (kind,) = [kind for kind in KINDS if kind.test == test]
    fault = Fault(0.0, kind, NS_PER_S, 2 * NS_PER_S, 2 * NS_PER_S, 3 * NS_PER_S)
    # Neither recorder nor process are asked.
    watch = Watch(cast(World, None), 0, faults=[fault])
    ages_ms = [20, 20, 700, 20, 20]
    ids = [104, 105, 106, 90, 91]
    times_ns = [NS_PER_S + 50 * MS * number for number in range(5)]
    watch._judge_messages(
        [
            Message(at_ns, number, number, at_ns - age_ms * MS, True, PRIMARY_MPS)
            for at_ns, number, age_ms in zip(times_ns, ids, ages_ms, strict=True)
        ]
    )
    return "; ".join(watch.violations)


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("test_frames_are_missing", (OLD, BACK)),
        ("test_process_is_killed", (OLD, BACK)),
        ("test_process_is_stopped_for_a_moment", (BACK,)),
        ("test_frame_ids_go_back", (OLD,)),
        ("test_head_of_a_ring_is_damaged", ()),
    ],
)
def test_only_kinds_that_may_move_ids_or_age_frames_are_excused(
    test: str, expected: tuple[str, ...]
) -> None:
    found = judged(test)
    assert [text for text in (OLD, BACK) if text in found] == list(expected)
    assert found.count(";") == max(0, len(expected) - 1)
