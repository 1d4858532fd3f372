"""Lines of what goes wrong for a while: begin, now and then, end, at most one a second."""

import logging
import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from cereal.clock import ManualClock
from modeld.state.episodes import NS_PER_S, Episodes, Kind
from modeld.state.loop_state import Fault, LoopState
from tests.modeld.bench import Log

MS = 1_000_000
OUTAGE = Kind("outage", over="frames again", unit="waits", fault=Fault.NO_FRAME)
EVENT = Kind("event", quiet_ns=10 * NS_PER_S)
SLOW = Kind("slow", over="it came", patience_ns=NS_PER_S)
Happens = Callable[[float], bool]


def always(_second: float) -> bool:
    return True


def never(_second: float) -> bool:
    return False


class Lines:
    """Episodes on a clock set by hand, and the seconds at which lines were written."""

    def __init__(self, caplog: Log) -> None:
        caplog.set_level(logging.INFO)
        self.clock = ManualClock(7 * NS_PER_S)
        self.state = LoopState()
        self.episodes = Episodes(self.clock, logging.getLogger("modeld.test"), self.state)
        self.caplog = caplog
        self.lines: list[tuple[float, str]] = []

    def hear(self) -> None:
        at_s = round(self.clock.now_ns() / NS_PER_S - 7, 2)
        self.lines += [(at_s, text) for text in self.caplog.messages]
        self.caplog.clear()

    def go(self, seconds: float, happens: Happens, kind: Kind = OUTAGE) -> None:
        """20 iterations a second; in each it happens, or all is well."""
        for index in range(round(20 * seconds)):
            self.clock.advance_ns(50 * MS)
            if happens(index / 20):
                self.episodes.happen(kind, "it fails", waited_ns=50 * MS)
            else:
                self.episodes.settle()
            self.hear()

    def end(self) -> None:
        self.episodes.end(OUTAGE)
        self.hear()

    def texts(self) -> list[str]:
        return [text for _, text in self.lines]


@pytest.fixture
def log(caplog: Log) -> Lines:
    return Lines(caplog)


def test_an_outage_has_a_begin_reminders_and_an_end(log: Lines) -> None:
    log.go(1, never)
    log.go(12.3, always)
    log.go(2, never)
    assert log.lines == [
        (1.05, "it fails"),
        (11.05, "it fails (10.1 s, 201 waits)"),
        (14.3, "frames again after 12.3 s, 246 waits"),
    ]
    assert log.state.faults[Fault.NO_FRAME] == 246


def test_reminders_of_an_hour_are_eleven(log: Lines) -> None:
    log.go(3600, always)
    times = [round(time) for time, _ in log.lines]
    assert times == [0, 10, 30, 70, 150, 310, 630, 1230, 1830, 2430, 3030]


@pytest.mark.parametrize(
    ("kind", "parts", "said"),
    [
        # An outage shorter than a second is one line and its end.
        (
            OUTAGE,
            [(10, lambda second: second < 0.3)],
            ["it fails", "frames again after 0.3 s, 6 waits"],
        ),
        # Outages that follow within a second are one.
        (
            OUTAGE,
            [(4.5, lambda second: second % 1 < 0.5), (2, never)],
            ["it fails", "frames again after 4.5 s, 50 waits"],
        ),
        # What is no outage has no end and is joined.
        (EVENT, [(60, lambda second: second in (0, 4, 8, 40))], ["it fails"] * 2),
        # What is waited for patiently is said after a second.
        (
            SLOW,
            [(3, lambda second: second < 0.9), (5, lambda second: second < 2.0)],
            ["it fails (1.0 s, 20 times)", "it came after 2.0 s, 40 times"],
        ),
    ],
    ids=["short", "joined", "event", "patience"],
)
def test_what_is_said(
    log: Lines, kind: Kind, parts: list[tuple[float, Happens]], said: list[str]
) -> None:
    for seconds, happens in parts:
        log.go(seconds, happens, kind)
    assert log.texts() == said


@pytest.mark.parametrize("seed", range(20))
def test_whatever_flaps_there_is_one_line_a_second_at_most(log: Lines, seed: int) -> None:
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
    times = [time for time, _ in log.lines]
    gaps = [after - before for before, after in pairwise(times)]
    assert len(gaps) > 20
    assert min(gaps) >= 1 - 1e-6


def test_an_end_that_is_known_is_said_at_once_unless_it_flaps(log: Lines) -> None:
    log.go(1, always)
    log.end()
    assert log.texts() == ["it fails"]
    log.go(1, always)
    log.end()
    first = ["it fails", "frames again after 2.0 s, 40 waits"]
    assert log.texts() == first
    log.end()
    log.go(0.3, always)
    log.end()
    log.go(2, never)
    assert log.texts() == [*first, "frames again after 0.3 s, 6 waits"]


def test_a_clock_that_is_set_back_begins_anew(log: Lines) -> None:
    for happens in (always, always, never):
        log.go(1, happens)
        log.clock.set_ns(0)
    log.go(2, never)
    assert log.texts() == ["it fails"] * 2
