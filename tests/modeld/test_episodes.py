"""Lines of what goes wrong for a while: begin, now and then, end, at most one a second."""

import logging
import random
from collections.abc import Callable

import pytest

from cereal.clock import ManualClock
from modeld.episodes import NS_PER_S, Episodes, Kind
from modeld.loop_state import Fault, LoopState

MS = 1_000_000
OUTAGE = Kind("outage", over="frames again", unit="waits", fault=Fault.NO_FRAME)
EVENT = Kind("event", quiet_ns=10 * NS_PER_S)


class Log:
    """Episodes on a clock set by hand, and the seconds at which lines were written."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.clock = ManualClock(7 * NS_PER_S)
        self.state = LoopState()
        self.episodes = Episodes(self.clock, logging.getLogger("modeld.test"), self.state)
        self.caplog = caplog
        self.lines: list[tuple[float, str]] = []

    def go(self, seconds: float, happens: Callable[[float], bool], kind: Kind = OUTAGE) -> None:
        """20 iterations a second; in each it happens, or all is well."""
        for index in range(round(20 * seconds)):
            self.clock.advance_ns(50 * MS)
            if happens(index / 20):
                self.episodes.happen(kind, "it fails", waited_ns=50 * MS)
            else:
                self.episodes.settle()
            for text in self.caplog.messages:
                self.lines.append((self.clock.now_ns() / NS_PER_S - 7, text))
            self.caplog.clear()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    caplog.set_level(logging.INFO)
    return Log(caplog)


def test_an_outage_has_a_begin_reminders_and_an_end(log: Log) -> None:
    log.go(1, lambda _: False)
    log.go(12.3, lambda _: True)
    log.go(2, lambda _: False)
    assert [(round(second, 2), text) for second, text in log.lines] == [
        (1.05, "it fails"),
        (11.05, "it fails (10.1 s, 201 waits)"),
        (14.3, "frames again after 12.3 s, 246 waits"),
    ]
    assert log.state.faults[Fault.NO_FRAME] == 246


def test_reminders_of_an_hour_are_eleven(log: Log) -> None:
    log.go(3600, lambda _: True)
    times = [round(time) for time, _ in log.lines]
    assert times == [0, 10, 30, 70, 150, 310, 630, 1230, 1830, 2430, 3030]


def test_an_outage_shorter_than_a_second_is_one_line_and_its_end(log: Log) -> None:
    log.go(10, lambda second: second < 0.3)
    assert [text for _, text in log.lines] == ["it fails", "frames again after 0.3 s, 6 waits"]


def test_outages_that_follow_within_a_second_are_one(log: Log) -> None:
    log.go(4.5, lambda second: second % 1 < 0.5)
    log.go(2, lambda _: False)
    assert [text for _, text in log.lines] == ["it fails", "frames again after 4.5 s, 50 waits"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_flaps_there_is_one_line_a_second_at_most(log: Log, seed: int) -> None:
    numbers = random.Random(seed)  # noqa: S311 -- a repeatable choice
    edges, state = [0.0], False
    while edges[-1] < 300:
        edges.append(edges[-1] + numbers.choice([0.05, 0.3, 0.9, 1.0, 1.05, 1.5, 12]))
    toggles = iter(edges)
    due = next(toggles)

    def happens(second: float) -> bool:
        nonlocal state, due
        while second >= due:
            state, due = not state, next(toggles)
        return state

    log.go(299, happens)
    gaps = [
        after - before for (before, _), (after, _) in zip(log.lines, log.lines[1:], strict=False)
    ]
    assert len(gaps) > 20
    assert min(gaps) >= 1 - 1e-6


def test_an_end_that_is_known_is_said_at_once_unless_it_flaps(log: Log) -> None:
    log.go(1, lambda _: True)
    log.episodes.end(OUTAGE)
    assert [text for _, text in log.lines] == ["it fails"]
    log.go(1, lambda _: True)
    log.episodes.end(OUTAGE)
    assert log.caplog.messages == ["frames again after 2.0 s, 40 waits"]
    log.episodes.end(OUTAGE)
    log.go(0.3, lambda _: True)
    log.episodes.end(OUTAGE)
    log.go(2, lambda _: False)
    assert [text for _, text in log.lines[1:]] == [
        "frames again after 2.0 s, 40 waits",
        "frames again after 0.3 s, 6 waits",
    ]


def test_what_is_no_outage_has_no_end_and_is_joined(log: Log) -> None:
    log.go(60, lambda second: second in (0, 4, 8, 40), EVENT)
    assert [text for _, text in log.lines] == ["it fails", "it fails"]


def test_patience(log: Log) -> None:
    slow = Kind("slow", over="it came", patience_ns=NS_PER_S)
    log.go(3, lambda second: second < 0.9, slow)
    assert log.lines == []
    log.go(5, lambda second: second < 2.0, slow)
    assert [text for _, text in log.lines] == [
        "it fails (1.0 s, 20 times)",
        "it came after 2.0 s, 40 times",
    ]


def test_a_clock_that_is_set_back_begins_anew(log: Log) -> None:
    log.go(1, lambda _: True)
    log.clock.set_ns(0)
    log.go(1, lambda _: True)
    assert [text for _, text in log.lines] == ["it fails", "it fails"]
    log.clock.set_ns(0)
    log.go(3, lambda _: False)
    assert len(log.lines) == 2
