import time

import pytest

from cereal.clock import Clock, ManualClock, MonotonicClock


def test_monotonic_clock_is_that_of_the_messages_and_sleeps_until_the_deadline() -> None:
    clock: Clock = MonotonicClock()
    before = time.monotonic_ns()
    assert before <= clock.now_ns() <= time.monotonic_ns()
    deadline = clock.now_ns() + 2_000_000
    clock.sleep_until_ns(deadline)
    assert clock.now_ns() >= deadline
    # A deadline in the past returns at once.
    started = clock.now_ns()
    clock.sleep_until_ns(started - 10**12)
    assert clock.now_ns() - started < 10**9


def test_manual_clock_moves_only_when_moved_and_steps_forward() -> None:
    clock: Clock = ManualClock(5)
    assert isinstance(clock, ManualClock)
    assert (clock.now_ns(), clock.now_ns()) == (5, 5)
    clock.advance_ns(3)
    clock.advance_ns(0)
    assert clock.now_ns() == 8
    for deadline in (20, 10):
        clock.sleep_until_ns(deadline)
        assert clock.now_ns() == 20
    with pytest.raises(ValueError, match="got -1"):
        clock.advance_ns(-1)
    clock.set_ns(1)
    assert clock.now_ns() == 1
