"""The threads of a replay: one reads ahead, one writes the log; none is left behind."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.tools.playback.synthetic_drive import SyntheticDrive, brightness
from tests.tools.waiting import wait_until
from tools.drives.drive import KEPT_MOMENTS, Moment
from tools.errors import DriveError
from tools.playback.run_drive import LogThread
from tools.playback.threads import DEPTH, prefetch


def left() -> list[threading.Thread]:
    ours = ("drive-prefetch", "log-writer")
    return [thread for thread in threading.enumerate() if thread.name in ours]


def test_prefetches_in_order_and_never_too_far() -> None:
    made = [-1]

    class Watched(SyntheticDrive):
        def _moments(self, first: int) -> Iterator[Moment]:
            for moment in super()._moments(first):
                made[0] = moment.index
                yield moment

    with prefetch(Watched(count=40)) as moments:
        for expected, moment in enumerate(moments):
            assert moment.index == expected
            if expected == 5:
                # In the queue, and one that waits for a place in it.
                wait_until(lambda: made[0] >= 5 + DEPTH + 1, "it has read ahead")
                threading.Event().wait(0.02)
                assert made[0] == 5 + DEPTH + 1
            # What the drive writes to next is not what is in use here.
            assert made[0] + 1 - moment.index < KEPT_MOMENTS
            assert (moment.frames["road"].data == brightness(expected, "road")).all()
    assert expected == 39
    with prefetch(SyntheticDrive(), first=9) as moments:
        assert [moment.index for moment in moments] == [9, 10, 11]
    assert left() == []


def test_errors_and_leaving_early_end_the_thread() -> None:
    seen: list[int] = []
    drive = SyntheticDrive(damaged_at=3)
    with pytest.raises(DriveError, match="found 3"), prefetch(drive) as moments:
        # extend() keeps what came before an exception.
        seen.extend(moment.index for moment in moments)
    assert (seen, left()) == ([0, 1, 2], [])
    drive = SyntheticDrive(count=1000)
    with contextlib.suppress(KeyboardInterrupt), prefetch(drive) as moments:
        next(moments)
        raise KeyboardInterrupt
    assert (left(), drive.opened) == ([], [1, 1])


def test_log_thread_writes_everything_in_order() -> None:
    written: list[bytes] = []
    with LogThread(written.append) as log:
        for index in range(300):
            log.record(b"%d" % index)
            if index % 3 == 0:
                log.flush()
    assert (written, left()) == ([b"%d" % index for index in range(300)], [])


# Noticed by a later event, or at the end where there is none; the queue never blocks.
@pytest.mark.parametrize("count", [1, 1000])
def test_log_thread_raises_what_the_log_raised_and_never_waits_for_it(count: int) -> None:
    def full(data: bytes) -> None:
        raise OSError(28, f"No space left on device ({data.decode()})")

    def write() -> None:
        with LogThread(full) as log:
            for index in range(count):
                log.record(b"%d" % index)
                log.flush()

    with pytest.raises(OSError, match=r"No space left on device \(0\)"):
        write()
    assert left() == []


INTERRUPTED = """
import itertools, random, signal, sys, threading
from tools.drives.drive import Moment
from tools.playback.threads import prefetch
from tools.playback.run_drive import LogThread

class Drive:
    def moments(self, first=0):
        return (Moment(index, (), {}) for index in itertools.count(first))

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
rng = random.Random(1)
for _ in range(int(sys.argv[1])):
    try:
        with LogThread(lambda data: None) as log, prefetch(Drive()) as moments:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.5e-3, 2.5e-3))
            for moment in moments:
                log.record(b"event")
                log.flush()
    except KeyboardInterrupt:
        pass
assert threading.active_count() == 1
"""


@pytest.mark.alone
@pytest.mark.slow
def test_interrupts_at_any_moment_leave_no_thread_waiting() -> None:
    subprocess.run([sys.executable, "-c", INTERRUPTED, "1500"], check=True, timeout=90)
