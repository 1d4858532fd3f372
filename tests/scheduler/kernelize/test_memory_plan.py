"""The arena: buffers alive together never share a byte; and the check of whole artifacts."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.kernelize.memory_plan import ALIGNMENT, Lifetime, aligned, live_bytes, plan_memory
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.memory_check import memory_faults
from tests.scheduler.support.programs import emitted


@st.composite
def lifetimes(draw: st.DrawFn) -> Lifetime:
    first = draw(st.integers(0, 20))
    size = draw(st.one_of(st.integers(1, 3000), st.sampled_from([256, 4096, 2**40])))
    return Lifetime(size, first, first + draw(st.integers(0, 8)))


@settings(max_examples=200)
@given(st.lists(lifetimes(), max_size=20))
def test_no_two_live_buffers_overlap(lives: list[Lifetime]) -> None:
    plan = plan_memory(lives)
    assert all(offset % ALIGNMENT == 0 for offset in plan.offsets)
    places = [(o, o + v.size, v.first, v.last) for o, v in zip(plan.offsets, lives, strict=True)]
    for a, b in combinations(places, 2):
        assert a[1] <= b[0] or b[1] <= a[0] or a[3] < b[2] or b[3] < a[2]
    assert max((end for _, end, *_ in places), default=0) <= plan.arena_size
    assert live_bytes(lives) <= plan.arena_size <= sum(aligned(life.size) for life in lives)


def test_a_chain_needs_two_buffers() -> None:
    lives = [Lifetime(1000, i, i + 1) for i in range(10)]
    assert plan_memory(lives).arena_size == 2 * 1024


def test_a_small_value_uses_a_gap() -> None:
    lives = [Lifetime(512, 0, 1), Lifetime(512, 0, 4), Lifetime(256, 2, 4)]
    assert plan_memory(lives).arena_size == 1024


def test_live_bytes_are_those_of_the_fullest_launch() -> None:
    lives = [Lifetime(256, 0, 2), Lifetime(512, 1, 1), Lifetime(100, 2, 3), Lifetime(1, 9, 9)]
    assert live_bytes(lives) == 768  # launch 1
    assert live_bytes([]) == plan_memory([]).arena_size == 0


def test_another_sequence_is_tried_where_largest_first_wastes_memory() -> None:
    rng = np.random.default_rng(0)
    wins = 0
    for _ in range(200):
        lives = []
        for _ in range(12):
            size, first, more = (int(n) for n in rng.integers([1, 0, 0], [9, 11, 6]))
            lives.append(Lifetime(256 * size, first, first + more))
        wins += plan_memory(lives).arena_size < largest_first(lives)
        assert plan_memory(lives).arena_size <= largest_first(lives)
    assert wins > 10


def largest_first(lives: Sequence[Lifetime]) -> int:
    """First fit, largest first, the plan of one sequence."""
    placed: list[tuple[int, Lifetime]] = []
    for life in sorted(lives, key=lambda v: (-v.size, -(v.last - v.first), v.first)):
        at = 0
        for offset, other in sorted(placed, key=lambda p: p[0]):
            alive = other.first <= life.last and life.first <= other.last
            if alive and offset < at + life.size:
                at = max(at, offset + other.size)
        placed.append((at, life))
    return max(offset + life.size for offset, life in placed)


def test_ten_thousand_values_are_placed_fast() -> None:
    lives = [Lifetime(1000 + i % 7, i, i + 2) for i in range(10_000)]
    assert plan_memory(lives).arena_size == live_bytes(lives) == 3 * 1024


def arena(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [b for b in manifest["buffers"] if b["kind"] == "arena"]


def over_its_source(manifest: dict[str, Any]) -> None:
    first, second = arena(manifest)[:2]
    second["offset"] = first["offset"]


def read_again(manifest: dict[str, Any]) -> None:
    """Read the first value once more, which is gone by then."""
    launches = manifest["entries"]["run"]["launches"]
    launches.append(launches[1])


def never_written(manifest: dict[str, Any]) -> None:
    del manifest["entries"]["run"]["launches"][0]


def outside(manifest: dict[str, Any]) -> None:
    manifest["arena_size"] -= 256


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (over_its_source, "which is in use"),
        (read_again, "was overwritten before"),
        (never_written, "before anything is written"),
        (outside, "outside the arena"),
    ],
)
def test_a_fault_in_memory_is_found(spoil: Callable[[dict[str, Any]], None], told: str) -> None:
    """Of four stored values two are alive at a time."""
    y = Tensor.input("x", (64,))
    for i in range(4):
        y = (y.flip(0) * float(i + 2)).contiguous()
    manifest = emitted({"y": y + 1.0}).manifest
    assert len(arena(manifest)) >= 2
    assert memory_faults(manifest) == []
    spoil(manifest)
    assert any(told in fault for fault in memory_faults(manifest))
