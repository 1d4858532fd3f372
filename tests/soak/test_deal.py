"""Which faults a soak has, and when: by its seed alone."""

from __future__ import annotations

from tests.faults.table import rows
from tests.soak.kinds import KINDS
from tests.soak.run import deal


def dealt(seed: int) -> list[tuple[float, str]]:
    return [(fault.planned_s, fault.kind.test) for fault in deal(seed, 3600.0, 6.0)]


def test_the_same_seed_gives_the_same_faults() -> None:
    assert dealt(3) == dealt(3)
    assert dealt(3) != dealt(4)


def test_all_kinds_come_before_any_comes_again() -> None:
    for start in range(0, 300, len(KINDS)):
        kinds = [kind for _, kind in dealt(1)[start : start + len(KINDS)]]
        assert len(set(kinds)) == len(kinds)


def test_faults_come_in_order_and_within_the_time() -> None:
    times = [at_s for at_s, _ in dealt(2)]
    assert times == sorted(times)
    assert len(times) == 360
    assert 0 < times[0] < times[-1] < 3600


def test_each_kind_is_a_row() -> None:
    assert {kind.test for kind in KINDS} <= set(rows())
    assert all(kind.row.within_s > 0 for kind in KINDS)
