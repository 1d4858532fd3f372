"""Entries of the cache of schedules: compiled once, taken from memory or disk."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.cache.schedules import EntryGraph, ScheduleCache
from scheduler.context import context_for
from scheduler.device.limits import TABLE
from scheduler.device.spec import DEFAULT
from scheduler.errors import SchedulerError
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import Array, floats, program_of, x


def _entry(weight: Array, scale: float = 2.0) -> EntryGraph:
    y = (x(4, 8) @ Tensor.weight(weight)).relu() * scale
    return EntryGraph({"y": y.node})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScheduleCache:
    monkeypatch.setenv("SCHEDULE_CACHE", "1")
    return ScheduleCache(tmp_path)


def test_the_same_nodes_are_scheduled_once(cache: ScheduleCache) -> None:
    entry = _entry(floats(8, 8))
    first = cache.schedule(entry, context_for())
    assert cache.schedule(entry, context_for()) is first
    assert cache.schedule(entry, context_for(replace(DEFAULT, limits=TABLE["webgpu"]))) is not first
    assert ScheduleCache().schedule(entry, context_for()) is not first


def test_an_equal_graph_is_compiled_once_and_another_one_again(
    cache: ScheduleCache, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "scheduler.cache.schedules")
    said = []
    for scale in (2.0, 2.0, 3.0):
        entries = {"run": _entry(floats(8, 8), scale)}
        cache.emitted(entries, context_for(), name="m", kind="plain")
        said.append([r.getMessage() for r in caplog.records if "m: compiled" in r.getMessage()])
        caplog.clear()
    assert [len(s) for s in said] == [1, 0, 1]


ROOT = Path(__file__).parents[3]


def test_another_process_takes_the_artifact_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDULE_CACHE", "1")
    script = (
        "import logging, numpy as np\n"
        "logging.basicConfig(level=logging.DEBUG)\n"
        "from scheduler.tensor.tensor import Tensor\n"
        "import sys, pathlib\n"
        "from scheduler.cache.schedules import EntryGraph, ScheduleCache\n"
        "from scheduler.context import context_for\n"
        "y = Tensor.input('x', (4, 8)) @ Tensor.weight(np.ones((8, 8), np.float32))\n"
        "entries = {'run': EntryGraph({'y': y.node})}\n"
        "cache = ScheduleCache(pathlib.Path(sys.argv[1]))\n"
        "made = cache.emitted(entries, context_for(), name='m', kind='plain')\n"
        "print(repr(made.manifest), made.data.hex())\n"
    )
    found = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", script, str(tmp_path)]
        found.append(
            subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        )
    assert found[0].stdout == found[1].stdout
    assert found[0].stderr != found[1].stderr  # the second says where it took it from
    assert any(p.is_file() for p in tmp_path.rglob("*"))


def test_a_cached_artifact_is_the_compiled_one(cache: ScheduleCache, tmp_path: Path) -> None:
    entries = {"run": _entry(floats(8, 8))}
    first = cache.emitted(entries, context_for(), name="m", kind="plain")
    again = ScheduleCache(tmp_path).emitted(entries, context_for(), name="m", kind="plain")
    assert (again.manifest, again.data) == (first.manifest, first.data)
    again.manifest["name"] = "changed"
    assert cache.emitted(entries, context_for(), name="m", kind="plain").manifest["name"] == "m"


def test_limits_that_cannot_be_met_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_KERNEL_BUFFERS", "many")
    with pytest.raises(SchedulerError, match="MAX_KERNEL_BUFFERS='many': expected a number"):
        program_of(x(4) + 1.0)
