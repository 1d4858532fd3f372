"""What a soak disturbs and when, and what it takes for a broken promise, or for the machine's."""

import os
import signal
import time
from typing import cast

import pytest

from tests.faults.recorder import Message
from tests.faults.table import rows
from tests.faults.world import PRIMARY_MPS, World
from tests.soak.kinds import KINDS
from tests.soak.run import deal
from tests.soak.standstill import LONGEST_BEAT_NS, Heart, Standstill, stood_still_ns
from tests.soak.watch import NS_PER_S, Fault, Watch

MS = 1_000_000
OLD, BACK = "is 700 ms old", "after 106"


def dealt(seed: int) -> list[tuple[float, str]]:
    return [(fault.planned_s, fault.kind.test) for fault in deal(seed, 3600.0, 6.0)]


def test_all_kinds_come_before_any_comes_again() -> None:
    for start in range(0, 300, len(KINDS)):
        kinds = [kind for _, kind in dealt(1)[start : start + len(KINDS)]]
        assert len(set(kinds)) == len(kinds)


def test_each_kind_is_a_row() -> None:
    assert {kind.test for kind in KINDS} <= set(rows())
    assert all(kind.row.within_s > 0 for kind in KINDS)


# --- pauses of the machine are told apart from those of the daemon ------------------------------


def test_a_process_that_is_stopped_misses_its_beats() -> None:
    heart = Heart()
    time.sleep(0.5)
    stopped_ns = time.monotonic_ns()
    os.kill(heart.pid, signal.SIGSTOP)
    time.sleep(0.6)
    os.kill(heart.pid, signal.SIGCONT)
    resumed_ns = time.monotonic_ns()
    time.sleep(0.2)
    longest = max(heart.stop(), key=lambda one: one.end_ns - one.start_ns)
    # It may have been about to beat, and then beats late on a busy machine: but not by much more.
    assert longest.start_ns < resumed_ns
    assert longest.end_ns >= resumed_ns - LONGEST_BEAT_NS
    assert stood_still_ns([longest], stopped_ns, resumed_ns) > 400_000_000


def test_only_the_part_within_counts() -> None:
    standstills = [Standstill(100, 200), Standstill(300, 350)]
    assert stood_still_ns(standstills, 0, 1000) == 150
    assert stood_still_ns(standstills, 150, 320) == 70
    assert stood_still_ns(standstills, 200, 300) == 0
    assert stood_still_ns([], 0, 1000) == 0


# --- a fault excuses what it may cause, and nothing else ----------------------------------------


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
