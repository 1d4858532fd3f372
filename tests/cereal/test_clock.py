import time

import pytest

from cereal.clock import Clock, ManualClock, MonotonicClock


def test_monotonic_clock_is_the_clock_of_the_messages() -> None:
    before = time.monotonic_ns()
    now = MonotonicClock().now_ns()
    assert before <= now <= time.monotonic_ns()


def test_monotonic_clock_sleeps_until_the_deadline_and_not_before() -> None:
    clock = MonotonicClock()
    deadline = clock.now_ns() + 2_000_000
    clock.sleep_until_ns(deadline)
    assert clock.now_ns() >= deadline
    # A deadline in the past returns at once.
    started = clock.now_ns()
    clock.sleep_until_ns(started - 10**12)
    assert clock.now_ns() - started < 10**9


def test_manual_clock_moves_only_when_moved() -> None:
    clock = ManualClock(5)
    assert (clock.now_ns(), clock.now_ns()) == (5, 5)
    clock.advance_ns(3)
    assert clock.now_ns() == 8
    clock.sleep_until_ns(20)
    assert clock.now_ns() == 20
    clock.sleep_until_ns(10)
    assert clock.now_ns() == 20
    clock.set_ns(1)
    assert clock.now_ns() == 1


def test_manual_clock_refuses_to_step_back() -> None:
    with pytest.raises(ValueError, match="got -1"):
        ManualClock().advance_ns(-1)


def test_both_are_clocks() -> None:
    clocks: list[Clock] = [MonotonicClock(), ManualClock()]
    assert all(clock.now_ns() >= 0 for clock in clocks)
