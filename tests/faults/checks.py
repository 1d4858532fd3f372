"""What tests of rows assert alike."""

import time
from itertools import pairwise

from tests.faults.recorder import Message
from tests.faults.table import Meanwhile, Row
from tests.faults.world import World, is_fallback

# Lines of warnings and errors, as text.
TROUBLE = r"^\S+ [WEC] "
# What the machine does to frames by itself now and then, where nothing is wrong.
HICCUPS = ("frames dropped: ", "no frame from the ", "frames from the ")


def check_logged(world: World, row: Row, start_ns: int, timeout_s: float = 3.0) -> None:
    """Each line of the row comes after the fault; where it says so, no warning and no error."""
    for pattern in row.logged:
        world.service.wait_line(pattern, start_ns, timeout_s)
    if row.is_quiet:
        lines = [line.text for line in world.service.lines(TROUBLE, start_ns)]
        assert not [line for line in lines if not any(text in line for text in HICCUPS)]


def check_meanwhile(world: World, row: Row, start_ns: int, end_ns: int | None = None) -> None:
    """Between two times, by default until now, the messages are those that the row says."""
    end_ns = time.monotonic_ns() if end_ns is None else end_ns
    seen = [message for message in world.recorder.since(start_ns) if message.arrived_ns <= end_ns]
    valid, text = [message.valid for message in seen], world.service.text()
    assert row.meanwhile is not None, f"{row.fault}: expected one of {list(Meanwhile)}"
    if row.meanwhile is Meanwhile.NOTHING:
        assert not seen, text
        return
    assert seen, text
    if row.meanwhile is Meanwhile.ALL:
        check_undisturbed(world, start_ns)
    elif row.meanwhile is Meanwhile.VALID:
        assert all(valid), text
    elif row.meanwhile is Meanwhile.INVALID:
        assert not any(valid), text
    elif row.meanwhile is Meanwhile.INVALID_AT_FIRST:
        assert not all(valid), text
        assert valid[-1], text
    else:
        ids = [message.frame_id for message in seen]
        assert ids == sorted(set(ids))
        # Of those of 20 Hz.
        assert len(ids) >= (end_ns - start_ns) / 1e9 * 20 / 4, text


def first_back(world: World, start_ns: int) -> Message:
    """The first message whose frame id is below that of the one before."""
    # With what came just before, for the id that it falls below.
    seen = world.recorder.since(start_ns - 1_000_000_000)
    falls = [after for before, after in pairwise(seen) if after.frame_id < before.frame_id]
    assert falls, world.service.text()
    return falls[0]


def wait_quiet(world: World, quiet_s: float = 2.5, timeout_s: float = 15.0) -> None:
    """Wait until each frame has had a valid message for so long.

    The log joins what happens again within two seconds. A machine that never comes to rest is left
    to what the test asserts.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        seen = world.recorder.since(time.monotonic_ns() - int(quiet_s * 1e9))
        whole = all(after.frame_id == before.frame_id + 1 for before, after in pairwise(seen))
        if len(seen) > quiet_s * 20 * 0.8 and whole and all(message.valid for message in seen):
            return
        time.sleep(0.05)


def check_resumed(world: World, row: Row, healed_ns: int | None = None) -> None:
    """Valid messages within the row's bound, from now on unless told otherwise."""
    assert world.wait_valid(healed_ns, row.within_s) <= row.within_s


def check_fallback_alone(world: World, row: Row) -> None:
    """The fallback model drives from the first frame on."""
    assert world.wait_valid(world.service.life.started_ns, 15.0) <= row.within_s
    check_logged(world, row, 0)
    assert all(is_fallback(message.speed_mps) for message in world.recorder.messages)


def check_undisturbed(world: World, start_ns: int, longest_gap_s: float = 0.25) -> None:
    """Since a time all messages were valid, ids went up, and no gap was longer than told."""
    seen = world.recorder.since(start_ns)
    assert len(seen) >= 3, world.service.text()
    assert all(message.valid for message in seen), world.service.text()
    ids = [message.frame_id for message in seen]
    assert ids == sorted(set(ids))
    gaps = [(b.arrived_ns - a.arrived_ns) / 1e9 for a, b in pairwise(seen)]
    assert max(gaps) <= longest_gap_s, world.service.text()
