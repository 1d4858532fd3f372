"""The search: what wins, when it stops; tables on disk; the cache of schedules."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.opencl.device import choose_device
from scheduler import schedule_cache
from scheduler.context import DEFAULT_CONTEXT, context_for
from scheduler.device import tuned_table
from scheduler.device.spec import SPECS
from scheduler.device.tuned_table import (
    HEURISTIC,
    Choice,
    Entry,
    TableError,
    TunedTable,
    parse_choice,
)
from scheduler.errors import SchedulerError
from scheduler.schedule_cache import EntryGraph
from scheduler.tensor.tensor import Tensor
from scheduler.tuning.tune import CONFIRM_ROUNDS, MARGIN, Search, is_faster, tune
from scheduler.tuning.variants import Job, Timing, Variant, jobs_of, same_results

KEY = "0123456789abcdef01234567"
ENTRY = Entry("64/2x16 u[4] i8 b0 x0 a0", parse_choice("v2 r8"), 12.5, 10.0, 17)


@pytest.fixture(autouse=True)
def tables_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNED")


def graph() -> EntryGraph:
    rng = np.random.default_rng(2)
    x = Tensor.input("x", (40, 32))
    w = [Tensor.weight(rng.standard_normal((32, 32)).astype(np.float32)) for _ in range(2)]
    return EntryGraph({"y": ((x @ w[0]).relu().softmax(-1) @ w[1]).node})


JOBS = jobs_of([graph()], DEFAULT_CONTEXT)


@dataclass
class Device:
    """Says how long a variant takes; building one takes a second of the clock, a round 10 ms."""

    times: Callable[[Job, Choice, int], float]
    wrong: Callable[[Choice], bool] = lambda _: False
    now: float = 0.0
    built: list[Variant] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def prepare(self, groups: Sequence[Sequence[Variant]], deadline: float) -> list[MadeUp | None]:
        made: list[MadeUp | None] = []
        for group in groups:
            if self.now >= deadline:
                made.append(None)
                continue
            self.now += 1.0
            self.built += group
            made.append(MadeUp(self, list(group)))
        return made


class MadeUp:
    """Variants whose times the device says."""

    def __init__(self, device: Device, variants: list[Variant]) -> None:
        self.device, self.variants = device, variants
        self.correct = [not device.wrong(v.choice) for v in variants]

    def run(self, which: Sequence[int], rounds: int) -> list[Timing]:
        self.device.now += 0.01 * rounds
        chosen = [self.variants[i] for i in which]
        found = [self.device.times(v.job, v.choice, rounds) for v in chosen]
        return [Timing(t, t * 1.1) for t in found]

    def release(self) -> None:
        pass


def search(device: Device, seconds: float = 1e6, peak: float = 0.0) -> Search:
    return Search(device.prepare, device.clock, seconds, peak, lambda _done, _total: None)


def test_the_fastest_choice_wins_by_its_margin() -> None:
    assert HEURISTIC.is_heuristic
    assert not ENTRY.choice.is_heuristic

    def times(_job: Job, choice: Choice, _rounds: int) -> float:
        return 1.0 - 0.05 * (choice.vectors == 2) - 0.05 * (choice.unroll == 1)

    for outcome in search(Device(times)).run(JOBS):
        if outcome.choice.is_heuristic:
            assert 2 not in {c.vectors for c in outcome.job.tiles()}
        else:
            assert outcome.best_ms < (1 - MARGIN) * outcome.heuristic_ms


def slower(_job: Job, choice: Choice, _rounds: int) -> float:
    return 1.0 if choice.is_heuristic else 1.0 + 0.1 * choice.vectors


def lucky(_job: Job, choice: Choice, rounds: int) -> float:
    """Whatever the first rounds said: what confirms is measured anew."""
    return 1.0 if choice.is_heuristic else 0.5 if rounds < CONFIRM_ROUNDS else 0.99


def fast(_job: Job, choice: Choice, _rounds: int) -> float:
    return 1.0 if choice.is_heuristic else 0.1


@pytest.mark.parametrize(("times", "wrong"), [(slower, False), (lucky, False), (fast, True)])
def test_a_slower_choice_or_one_with_other_results_never_wins(
    times: Callable[[Job, Choice, int], float], wrong: bool
) -> None:
    device = Device(times, lambda choice: wrong and not choice.is_heuristic)
    outcomes = search(device).run(JOBS)
    assert len(outcomes) == len(JOBS)
    assert all(o.choice.is_heuristic for o in outcomes)
    assert any(o.wrong if wrong else o.tried > 1 for o in outcomes)


@pytest.mark.parametrize(
    ("minimum", "median", "faster"),
    [(0.9, 0.9, True), (0.9, 1.0, False), (1.0, 0.9, False), (0.98, 0.98, False)],
)
def test_both_the_minimum_and_the_median_have_to_be_better(
    minimum: float, median: float, faster: bool
) -> None:
    assert is_faster(Timing(minimum, median), Timing(1.0, 1.0)) is faster


@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.5, 3.0, 4.2])
def test_the_time_is_kept(seconds: float) -> None:
    """Over by one build at most, which a real one is cut short in."""
    device = Device(lambda _job, choice, _rounds: 1.0 - 0.1 * bool(choice.vectors))
    search(device, seconds).run(JOBS)
    assert device.now <= seconds + 1.0 + 1.0


def test_heavy_kernels_come_first_and_known_ones_are_left_out() -> None:
    heavy = JOBS[-1]
    device = Device(lambda job, _choice, _rounds: 5.0 if job is heavy else 1.0)
    outcomes = search(device).run(JOBS)
    assert outcomes[0].job is heavy
    assert len(outcomes) == len(JOBS)
    assert heavy not in [o.job for o in search(device).run(JOBS, [heavy])]


def test_nothing_is_searched_further_at_the_peak() -> None:
    job = max(JOBS, key=lambda j: j.flops)
    device = Device(lambda _job, _choice, _rounds: job.flops / 100e6)
    (at_peak,), (below,) = (search(device, peak=peak).run([job]) for peak in (100.0, 1000.0))
    assert at_peak.tried < below.tried


def test_a_table_comes_back_from_its_file(tmp_path: Path) -> None:
    table = TunedTable("cpu", "device", "driver", {KEY: ENTRY, "f" * 24: ENTRY})
    path = tmp_path / "tuned" / "cpu.json"
    tuned_table.write_table(path, table)
    found = tuned_table.read_table(path)
    assert found == table
    assert found.text() == table.text() == path.read_text(encoding="utf-8")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["cpu.json"]


def damaged() -> list[str]:
    whole: dict[str, Any] = json.loads(TunedTable("cpu", "d", "v", {KEY: ENTRY}).text())
    entry = whole["kernels"][KEY]
    changes: list[dict[str, Any]] = [{"format": 2}, {"device": 3}]
    changes += [{"kernels": {"../../key": entry}}, {"kernels": {KEY: []}}]
    for name, value in (
        *(("choice", choice) for choice in ("v99", "v4 r60", None)),
        *(("us", us) for us in (-1, "1", float("nan"))),
        *(("was", "x" * 1000), ("heuristic_us", True), ("tried", None)),
    ):
        changes.append({"kernels": {KEY: {**entry, name: value}}})
    return ["", "{", "[]", "[" * 100_000, *(json.dumps({**whole, **change}) for change in changes)]


@pytest.mark.parametrize("text", damaged())
def test_a_damaged_table_is_left_alone_with_a_warning(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TableError):
        tuned_table.parse_table(text)
    path = tmp_path / "cpu.json"
    path.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert tuned_table.read_table(path) == tuned_table.EMPTY
    assert str(path) in caplog.text
    assert path.read_text(encoding="utf-8") == text
    assert tuned_table.read_table(tmp_path / "missing.json") == tuned_table.EMPTY


def test_a_file_of_another_device_is_not_taken_for_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is a digest, so such a file was copied there; nothing in it was measured here."""
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path))
    device, key = ("cpu", "this", "1.0"), "0" * 24
    path, found = tuned_table.table_path(*device), {key: ENTRY}
    tuned_table.write_table(path, TunedTable(*device, found))
    assert tuned_table.own_table(*device).entries == found
    tuned_table.write_table(path, TunedTable("cpu", "another", "1.0", found))
    assert not tuned_table.own_table(*device).entries
    assert key not in tuned_table.table_for(*device).entries


def test_shipped_tables_are_whole() -> None:
    for path in sorted(tuned_table.SHIPPED.glob("*.json")):
        table = tuned_table.parse_table(path.read_text(encoding="utf-8"))
        assert table.target == path.stem
        assert table.target in SPECS
        assert table.text() == path.read_text(encoding="utf-8")
        assert all(e.us <= e.heuristic_us for e in table.entries.values())


def test_the_cache_of_schedules_tells_tables_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDULE_CACHE", "1")
    entry = {"run": graph()}

    def key(table: TunedTable) -> str | None:
        return schedule_cache._request(entry, context_for(tuned=table), ())

    first, same = TunedTable(entries={KEY: ENTRY}), TunedTable("cpu", entries={KEY: ENTRY})
    other = TunedTable(entries={KEY: Entry(ENTRY.was, Choice(1, 8), 12.5, 10.0, 17)})
    assert key(first) == key(same) != key(other)
    assert key(tuned_table.EMPTY) not in (key(first), key(other))
    monkeypatch.setenv("TUNED", "0")
    assert key(first) == key(other)


@pytest.mark.parametrize(
    ("found", "same"),
    [
        ([1.0, -3.0, np.nan, np.inf], True),
        ([1.0 + 1e-5, -3.0, np.nan, np.inf], True),
        ([1.01, -3.0, np.nan, np.inf], False),
        ([1.0, -3.0, 0.0, np.inf], False),
        ([1.0, np.nan, np.nan, np.inf], False),
    ],
)
def test_other_results_are_noticed(found: list[float], same: bool) -> None:
    expected = np.array([1.0, -3.0, np.nan, np.inf], np.float32)
    assert same_results(np.array(found, np.float32), expected) is same


@pytest.mark.opencl
@pytest.mark.slow
def test_tuning_finds_something_or_nothing_and_remembers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path))
    device, context = choose_device("cpu"), context_for()
    told: list[tuple[int, int]] = []
    first = tune([graph()], context, device, 3.0, lambda *n: told.append(n))
    assert told
    assert told[0][0] == 0
    assert {line.state for line in first.lines} <= {"searched", "not reached"}
    assert first.best_ms <= first.heuristic_ms
    of_device = (context.spec.target, device.info.name, device.info.driver)
    kept = tuned_table.read_table(tuned_table.table_path(*of_device))
    assert len(kept.entries) == sum(line.state == "searched" for line in first.lines) > 0
    used = tuned_table.table_for(*of_device)
    assert kept.digest == used.digest or tuned_table.shipped_table(of_device[0]).entries
    again = tune([graph()], context, device, 0.5)
    assert sum(line.state == "known" for line in again.lines) == len(kept.entries)
    assert [p["kernel"] for p in first.plain()["kernels"]]


def test_a_gpu_is_not_measured_for_a_target_of_cpus() -> None:
    here = choose_device("cpu")
    gpu = replace(here, info=replace(here.info, kind="gpu"))
    with pytest.raises(SchedulerError, match="--tune"):
        tune([graph()], DEFAULT_CONTEXT, gpu, 1.0)
