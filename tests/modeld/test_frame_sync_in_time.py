"""Pairing with cameras of their own pace, on a clock that waits advance: what is lost, how long."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from cereal.clock import ManualClock
from cereal.frames import Frame, FrameFormat
from modeld.frames.frame_sync import EXTRA_WAIT_MS, LOST_AFTER_MS, FramePair
from modeld.state.loop_state import Fault
from tests.modeld.bench import MS, Log
from tests.modeld.conftest import make_sync
from tests.modeld.fake_program import SMALL

RING = 18
TIMEOUT_MS = 100
PICTURE = np.zeros(SMALL.size, np.uint8)


@dataclass
class TimedCamera:
    """A camera that is read as a ring is; waiting moves the clock on.

    Its frames come `phase_ms` after the main camera's, its stamps are off by `offset_ms`, and
    frames of the numbers `missing` never come.
    """

    clock: ManualClock
    period_ms: float = 50
    phase_ms: float = 0
    offset_ms: float = 0
    ns_per_unit: int = 1
    conflate: bool = False
    missing: range = range(0)
    format: FrameFormat = SMALL
    last: int = field(init=False)

    def __post_init__(self) -> None:
        self.last = self.head()

    def head(self) -> int:
        """Return the number of the newest frame."""
        head = int((self.clock.now_ns() / MS - self.phase_ms) // self.period_ms)
        return min(head, self.missing.start - 1) if head in self.missing else head

    def receive(self, timeout_ms: int) -> Frame | None:
        """Return the next frame, waiting for it on the clock."""
        end_ns = self.clock.now_ns() + timeout_ms * MS
        if self.head() <= self.last:
            number = self.last + 1
            while number in self.missing:
                number += 1
            due_ns = int((number * self.period_ms + self.phase_ms) * MS) + 1
            self.clock.sleep_until_ns(min(due_ns, end_ns))
            if due_ns > end_ns:
                return None
        number = self.head() if self.conflate else max(self.last + 1, self.head() - RING + 1)
        while number in self.missing:
            number += 1
        self.last = number
        taken_ms = number * self.period_ms + self.phase_ms + self.offset_ms
        sof_ns = int(taken_ms * MS) // self.ns_per_unit
        return Frame(PICTURE, SMALL, number, sof_ns, sof_ns)

    def is_intact(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Do nothing."""


@dataclass
class Drive:
    """What came of 20 s: the pairs, and when each came, ms."""

    pairs: list[FramePair] = field(default_factory=list)
    starts_ms: list[float] = field(default_factory=list)

    def drops(self, after: int = 0) -> int:
        """Return the main frames missing after so many pairs."""
        numbers = [pair.main.frame_id for pair in self.pairs[after:]]
        return numbers[-1] - numbers[0] + 1 - len(numbers)

    def lone(self) -> list[int]:
        return [pair.main.frame_id for pair in self.pairs if pair.lacks_extra]

    def apart(self) -> list[int]:
        return [pair.main.frame_id for pair in self.pairs if pair.apart]


def drive(main: TimedCamera, extra: TimedCamera, model_ms: int = 20) -> Drive:
    clock, found = main.clock, Drive()
    sync = make_sync(main, extra, timeout_ms=TIMEOUT_MS)
    begin_ns, longest_ns = clock.now_ns(), 0
    while clock.now_ns() < begin_ns + 20_000 * MS:
        called_ns = clock.now_ns()
        pair = sync.receive()
        longest_ns = max(longest_ns, clock.now_ns() - called_ns)
        if pair is not None:
            found.pairs.append(pair)
            found.starts_ms.append((clock.now_ns() - begin_ns) / MS)
            clock.advance_ns(model_ms * MS)
    # A stop is noticed between two calls.
    assert longest_ns <= (TIMEOUT_MS + EXTRA_WAIT_MS) * MS
    return found


@pytest.fixture
def main() -> TimedCamera:
    return TimedCamera(ManualClock(20_000 * MS), conflate=True)


@pytest.mark.parametrize("phase_ms", [0, 2, 20])
@pytest.mark.parametrize("model_ms", [5, 40])
def test_cameras_in_step_lose_nothing(main: TimedCamera, phase_ms: int, model_ms: int) -> None:
    extra = TimedCamera(main.clock, phase_ms=phase_ms)
    found = drive(main, extra, min(model_ms, 49 - phase_ms))
    assert (found.drops(), found.lone(), found.apart()) == (0, [], [])


@pytest.mark.parametrize("phase_ms", [0, 15, 45])
@pytest.mark.parametrize("period_ms", [50, 33.3, 16.7])
@pytest.mark.parametrize("offset_ms", [-10_000, 10_000])
def test_a_clock_of_its_own_costs_the_main_camera_nothing(
    main: TimedCamera, phase_ms: int, period_ms: float, offset_ms: int
) -> None:
    found = drive(main, TimedCamera(main.clock, period_ms, phase_ms, offset_ms))
    assert all(pair.lacks_extra or pair.apart for pair in found.pairs)
    assert len(found.lone()) >= len(found.pairs) - 1
    first = next(index for index, pair in enumerate(found.pairs) if pair.lacks_extra)
    # Lost within the limit, a wait and a period, and from then on each main frame is used.
    assert found.starts_ms[first] <= LOST_AFTER_MS + EXTRA_WAIT_MS + 50
    assert found.drops(after=first) == 0
    assert len(found.pairs) > 390


@pytest.mark.parametrize("phase_ms", [0, 10, 30, 40, 60, 90])
@pytest.mark.parametrize("period_ms", [66.7, 100, 200, 500])
@pytest.mark.parametrize("model_ms", [20, 40])
def test_with_a_slower_extra_camera_each_main_frame_is_used_and_marked(
    main: TimedCamera, period_ms: float, phase_ms: int, model_ms: int
) -> None:
    found = drive(main, TimedCamera(main.clock, period_ms, phase_ms), model_ms)
    # The first loss may be for silence, and end with the first pair; from the second on it stays.
    first = next(i for i in range(60) if all(pair.lacks_extra for pair in found.pairs[i:]))
    assert found.starts_ms[first] <= 2_500
    # Its rate is known after two frames; until then one wait may be in vain.
    assert found.drops(after=first) <= 1
    assert found.drops(after=first + 10) == 0


@pytest.mark.parametrize("phase_ms", [0, 2, 20])
def test_an_extra_camera_that_pauses_comes_back(main: TimedCamera, phase_ms: int) -> None:
    first = main.head() + 100
    paused = range(first, first + 60)
    found = drive(main, TimedCamera(main.clock, phase_ms=phase_ms, missing=paused))
    lone = found.lone()
    assert first + 5 <= lone[0] <= first + 7
    # Its first frame may come after the main camera's was taken.
    assert lone == list(range(lone[0], lone[-1] + 1))
    assert 59 <= lone[-1] - first <= 60
    assert found.apart() == []
    assert found.drops(after=101) == 0


def test_a_main_camera_whose_time_goes_back_alone_is_gone_on_with(main: TimedCamera) -> None:
    """The extra camera keeps to the time before, so all of its frames look left over."""
    sync = make_sync(main, TimedCamera(main.clock), timeout_ms=TIMEOUT_MS)
    assert all(sync.receive() is not None for _ in range(20))
    main.offset_ms = -10_000
    begin_ns = main.clock.now_ns()
    while (pair := sync.receive()) is None:
        assert main.clock.now_ns() < begin_ns + 2 * LOST_AFTER_MS * MS
    assert pair.lacks_extra


def test_late_frames_of_the_extra_camera_are_waited_for(main: TimedCamera) -> None:
    """They come 120 ms after they were taken: three waits, and each pair is of one moment."""
    found = drive(main, TimedCamera(main.clock, phase_ms=120, offset_ms=-120))
    assert (found.lone(), found.apart()) == ([], [])


@pytest.mark.parametrize(
    ("main_unit", "extra_unit"), [(1000, 1), (1, 1000), (1000, 1000), (1000, None)]
)
def test_wrong_units_are_said_and_a_stop_is_noticed_meanwhile(
    main: TimedCamera, main_unit: int, extra_unit: int | None, caplog: Log
) -> None:
    main.ns_per_unit = main_unit
    extra = None if extra_unit is None else TimedCamera(main.clock, ns_per_unit=extra_unit)
    sync = make_sync(main, extra, timeout_ms=TIMEOUT_MS, clock=main.clock)
    for _ in range(1000):
        called_ns = main.clock.now_ns()
        sync.receive()
        assert main.clock.now_ns() - called_ns <= (TIMEOUT_MS + EXTRA_WAIT_MS) * MS
    said = [text for text in caplog.messages if "expected start-of-frame stamps in nano" in text]
    assert 1 <= len(said) <= 6
    assert sync.log.episodes.state.faults[Fault.FRAME_STAMPS] >= 1
