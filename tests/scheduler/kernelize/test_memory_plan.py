"""The arena: buffers alive together never share a byte."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.compile import CompiledModel, compile_plain
from scheduler.kernelize.memory_plan import ALIGNMENT, Lifetime, aligned, plan_memory
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.memory_check import memory_faults
from tests.scheduler.support.programs import emitted
from tools.make_model import write_models


def overlaps(lives: Sequence[Lifetime], offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs that are alive in one launch and share bytes, by asking about every launch."""
    found = []
    for (i, a), (j, b) in combinations(enumerate(lives), 2):
        together = set(range(a.first, a.last + 1)) & set(range(b.first, b.last + 1))
        apart = offsets[i] + a.size <= offsets[j] or offsets[j] + b.size <= offsets[i]
        if together and not apart:
            found.append((i, j))
    return found


@st.composite
def lifetimes(draw: st.DrawFn) -> Lifetime:
    first = draw(st.integers(0, 20))
    size = draw(st.one_of(st.integers(1, 600), st.sampled_from([256, 4096, 2**40])))
    return Lifetime(size, first, first + draw(st.integers(0, 8)))


@settings(max_examples=400)
@given(st.lists(lifetimes(), max_size=16))
def test_no_two_live_buffers_overlap(lives: list[Lifetime]) -> None:
    plan = plan_memory(lives)
    assert overlaps(lives, plan.offsets) == []
    assert all(offset % ALIGNMENT == 0 for offset in plan.offsets)
    ends = [o + lt.size for o, lt in zip(plan.offsets, lives, strict=True)]
    assert max(ends, default=0) <= plan.arena_size <= plan.unplanned_size
    assert plan.unplanned_size == sum(aligned(lt.size) for lt in lives)


def test_the_checker_finds_an_overlap() -> None:
    assert overlaps([Lifetime(10, 0, 2), Lifetime(10, 2, 3)], [0, 0]) == [(0, 1)]
    assert overlaps([Lifetime(10, 0, 1), Lifetime(10, 2, 3)], [0, 0]) == []


def test_a_chain_needs_two_buffers() -> None:
    lives = [Lifetime(1000, i, i + 1) for i in range(10)]
    plan = plan_memory(lives)
    assert plan.arena_size == 2 * 1024
    assert plan.unplanned_size == 10 * 1024


def test_a_small_value_uses_a_gap() -> None:
    lives = [Lifetime(512, 0, 1), Lifetime(512, 0, 4), Lifetime(256, 2, 4)]
    assert plan_memory(lives).arena_size == 1024


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> CompiledModel:
    ((path, _),) = write_models(tmp_path_factory.mktemp("models"), ("vision",))
    return compile_plain(Path(path))


def test_the_example_vision_model_s_arena(vision: CompiledModel) -> None:
    """Lifetimes are worked out again from the launches of the artifact."""
    manifest = vision.manifest
    buffers, kernels = manifest["buffers"], manifest["kernels"]
    touched: dict[int, list[int]] = {}
    for at, launch in enumerate(manifest["entries"]["run"]["launches"]):
        for argument in kernels[launch]["args"]:
            if buffers[argument]["kind"] == "arena":
                touched.setdefault(argument, []).append(at)
    assert len(touched) > 20
    lives = [Lifetime(buffers[i]["size"], min(at), max(at)) for i, at in touched.items()]
    offsets = [buffers[i]["offset"] for i in touched]
    assert overlaps(lives, offsets) == []
    assert all(o % ALIGNMENT == 0 for o in offsets)
    ends = [o + lt.size for o, lt in zip(offsets, lives, strict=True)]
    assert max(ends) <= manifest["arena_size"] < vision.arena_unplanned
    assert memory_faults(manifest) == []


# --- the brute-force check of whole artifacts -------------------------------------------------


def chain() -> dict[str, Any]:
    """Return the manifest of four stored values of which two are alive at a time."""
    y = Tensor.input("x", (64,))
    for i in range(4):
        y = (y.flip(0) * float(i + 2)).contiguous()
    return emitted({"y": y + 1.0}).manifest


def arena(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [b for b in manifest["buffers"] if b["kind"] == "arena"]


def test_a_sound_artifact_has_no_faults() -> None:
    manifest = chain()
    assert len(arena(manifest)) >= 2
    assert memory_faults(manifest) == []


def test_a_result_over_its_own_source_is_found() -> None:
    manifest = chain()
    first, second = arena(manifest)[:2]
    second["offset"] = first["offset"]
    assert any("which is in use" in fault for fault in memory_faults(manifest))


def test_a_value_overwritten_before_its_last_read_is_found() -> None:
    manifest = chain()
    launches = manifest["entries"]["run"]["launches"]
    launches.append(launches[1])  # reads the first value again, which is gone by now
    assert any("was overwritten before" in fault for fault in memory_faults(manifest))


def test_a_read_of_what_nobody_wrote_is_found() -> None:
    manifest = chain()
    del manifest["entries"]["run"]["launches"][0]
    assert any("before anything is written" in fault for fault in memory_faults(manifest))


def test_a_value_that_ends_outside_the_arena_is_found() -> None:
    manifest = chain()
    manifest["arena_size"] -= 256
    assert any("outside the arena" in fault for fault in memory_faults(manifest))
