"""What tests of rows assert alike."""

from __future__ import annotations

from itertools import pairwise

from tests.faults.table import Row
from tests.faults.world import World


def check_logged(world: World, row: Row, start_ns: int, timeout_s: float = 3.0) -> None:
    """Each line of the row comes after the fault."""
    for pattern in row.logged:
        world.service.wait_line(pattern, start_ns, timeout_s)


def check_resumed(world: World, row: Row, healed_ns: int) -> None:
    """Valid messages within the row's bound."""
    assert world.wait_valid(healed_ns, row.within_s) <= row.within_s


def check_undisturbed(world: World, start_ns: int, longest_gap_s: float = 0.25) -> None:
    """Since a time all messages were valid, ids went up, and no gap was longer than told."""
    seen = world.recorder.since(start_ns)
    assert len(seen) >= 3, world.service.text()
    assert all(message.valid for message in seen), world.service.text()
    ids = [message.frame_id for message in seen]
    assert ids == sorted(set(ids))
    gaps = [(b.arrived_ns - a.arrived_ns) / 1e9 for a, b in pairwise(seen)]
    assert max(gaps) <= longest_gap_s, world.service.text()
