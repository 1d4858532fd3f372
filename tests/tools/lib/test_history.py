"""Histories of figures: appended whole, read with mistrust, judged by their own past."""

import argparse
import dataclasses
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.tools.conftest import Modeld
from tests.tools.page import Page
from tools.errors import UsageError
from tools.report import history
from tools.report.history import FILE_NAME, Run, append_run, note_run, read_history
from tools.report.history_report import better, change_points, judge_runs, smallest_change

RUN = Run("2026-11-28T09:30:00Z", "ab" * 20, False, "bench", "driving run", "CPU", "m", {})


def runs_of(*values: float, figure: str = "median_ms") -> list[Run]:
    """Return a run of each value, each of a commit of its own."""
    return [
        dataclasses.replace(RUN, commit=f"{number:040x}", figures={figure: value})
        for number, value in enumerate(values)
    ]


def write(directory: Path, runs: list[Run]) -> Path:
    for run in runs:
        append_run(directory, run)
    return directory


def lines(directory: Path) -> list[str]:
    return (directory / FILE_NAME).read_text(encoding="utf-8").splitlines()


def test_what_is_appended_is_read_again(tmp_path: Path) -> None:
    runs = runs_of(6.25, 6.5)
    assert read_history(write(tmp_path / "a" / "b", runs)) == (runs, [])


def test_many_writers_lose_no_line(tmp_path: Path) -> None:
    runs = runs_of(*range(60))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda run: append_run(tmp_path, run), runs))
    found, damaged = read_history(tmp_path)
    assert damaged == []
    assert sorted(run.commit for run in found) == [run.commit for run in runs]


def test_a_run_appended_after_a_torn_line_is_not_lost(tmp_path: Path) -> None:
    write(tmp_path, runs_of(1.0))
    whole = (tmp_path / FILE_NAME).read_bytes()
    (tmp_path / FILE_NAME).write_bytes(whole + whole[:40])
    write(tmp_path, runs_of(2.0))
    found, damaged = read_history(tmp_path)
    assert [run.figures["median_ms"] for run in found] == [1.0, 2.0]
    assert damaged == [f"{tmp_path / FILE_NAME}:2: left out: expected a JSON object, found none"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": 2}, "expected format 1, found '2'"),
        ({"date": "yesterday"}, "date: expected"),
        ({"commit": 7}, "commit: expected a text"),
        ({"device": "x" * 201}, "device: expected a text of at most 200"),
        ({"subject": "a\x1b[2J"}, "subject: expected a text"),
        ({"figures": []}, "figures: expected an object"),
        ({"figures": {"a": "6"}}, "figures: a: expected a finite number"),
        ({"figures": {"a": True}}, "figures: a: expected a finite number"),
        ({"figures": {"a": 10**400}}, "figures: a: expected a finite number"),
        ({"figures": dict.fromkeys(map(str, range(401)), 1)}, "at most 400 numbers"),
    ],
)
def test_a_damaged_line_is_named_and_left_out(
    tmp_path: Path, change: dict[str, object], why: str
) -> None:
    write(tmp_path, runs_of(1.0))
    damaged = json.loads(lines(tmp_path)[0]) | change
    with (tmp_path / FILE_NAME).open("a", encoding="utf-8") as file:
        file.write(json.dumps(damaged) + "\n")
    write(tmp_path, runs_of(3.0))
    found, said = read_history(tmp_path)
    assert [run.figures["median_ms"] for run in found] == [1.0, 3.0]
    assert len(said) == 1
    assert f"{FILE_NAME}:2: left out: " in said[0]
    assert why in said[0]


def test_bytes_that_are_no_history_end_in_a_bounded_answer(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    rubbish = [b"\xff\xfe", b"[" * 60_000, b"7", b"x" * (history.MAX_LINE_BYTES * 3), b"NaN"]
    path.write_bytes(b"\n".join(rubbish * 6) + b"\n")
    write(tmp_path, runs_of(4.0))
    found, damaged = read_history(tmp_path)
    assert [run.figures["median_ms"] for run in found] == [4.0]
    assert len(damaged) == history.MAX_DAMAGED + 1
    assert damaged[-1].endswith(f"{30 - history.MAX_DAMAGED} more damaged lines are left out")
    assert max(map(len, damaged)) < 300


def test_what_cannot_be_appended_to_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE_NAME)
    with pytest.raises(UsageError, match="no ordinary file"):
        append_run(tmp_path, RUN)
    for place in (tmp_path, tmp_path / "missing"):  # the FIFO is not waited for
        with pytest.raises(UsageError, match="expected a history"):
            read_history(place)


def test_a_run_is_noted_with_the_commit_of_the_users_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        names = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *names, *words],  # noqa: S607 - the machine's own
            check=True,
            capture_output=True,
        )
        return done.stdout.decode().strip()

    git("init", "-q")
    (tmp_path / "file").write_text("1", encoding="utf-8")
    git("add", "file")
    git("commit", "-qm", "first")
    monkeypatch.chdir(tmp_path)
    args = argparse.Namespace(history=tmp_path / "history", command="drive")
    about = {"subject": "lane-keeping", "device": " CPU ", "model": "d"}
    note_run(args, **about, figures={"km": 2.0, "gap": None, "flag": True, "bad": np.inf})
    (tmp_path / "file").write_text("2", encoding="utf-8")
    note_run(args, **about, figures={"km": 1})
    (one, other), _ = read_history(tmp_path / "history")
    assert (one.commit, one.modified, other.modified) == (git("rev-parse", "HEAD"), False, True)
    assert (one.figures, other.figures) == ({"km": 2.0}, {"km": 1.0})
    assert (one.device, one.command, one.subject) == ("CPU", "drive", "lane-keeping")
    assert other.name == f"{one.commit[:10]}*"


STEADY = (10.0, 10.1, 9.9, 10.0, 10.05, 9.95, 10.02)


@pytest.mark.parametrize(
    ("values", "figure", "state"),
    [
        ((*STEADY, 10.1), "median_ms", "within"),
        ((*STEADY, 11.5), "median_ms", "beyond"),
        ((*STEADY, 8.5), "median_ms", "better"),
        ((*STEADY, 8.5), "gflops", "beyond"),
        ((*STEADY, 11.5), "gflops", "better"),
        # Of which nobody knows which way is better.
        ((*STEADY, 8.5), "speed", "beyond"),
        # One outlier of the past allows no other.
        ((*STEADY, 30.0, 10.0, 10.1, 11.5), "median_ms", "beyond"),
        # A past that never varied allows a little; a millimetre is none of a driver's business.
        ((0.04,) * 8 + (0.0405,), "offset_p99_m", "within"),
        ((0.04,) * 8 + (0.05,), "offset_p99_m", "beyond"),
        ((0.0,) * 8 + (1.0,), "departures", "beyond"),
        ((10.0, 10.0, 10.0, 10.0, 99.0), "median_ms", "short"),
        # It became slower a while ago, for good: that is its past now, and faster is better.
        ((*STEADY, *(value + 5.0 for value in STEADY), 15.1), "median_ms", "within"),
        ((*STEADY, *(value + 5.0 for value in STEADY), 10.0), "median_ms", "better"),
    ],
)
def test_the_last_value_is_judged_by_its_own_past(
    values: tuple[float, ...], figure: str, state: str
) -> None:
    (series,) = judge_runs(runs_of(*values, figure=figure))
    assert series.state == state


def test_runs_of_other_devices_subjects_and_commands_are_other_pasts() -> None:
    runs = runs_of(*STEADY)
    other = dataclasses.replace(runs[0], figures={"median_ms": 99.0})
    runs.append(dataclasses.replace(other, device="GPU"))
    runs.append(dataclasses.replace(other, subject="other"))
    runs.append(dataclasses.replace(other, command="drive"))
    found = judge_runs(runs)
    assert [(one.state, one.past) for one in found] == [("within", 6), *[("short", 0)] * 3]


def test_a_change_names_the_commit_that_made_it() -> None:
    runs = runs_of(*STEADY, *(value * 1.3 for value in STEADY))
    (series,) = judge_runs(runs)
    (change,) = series.changes
    assert series.runs[change.at].commit == f"{len(STEADY):040x}"
    assert (change.before, change.after) == (10.0, 13.0)


def test_noise_and_single_outliers_are_no_change() -> None:
    noise = np.random.default_rng(3).normal(10.0, 0.3, (40, 60))
    noise[:, 30] += 20.0
    found = [change_points(row, smallest_change("median_ms", row)) for row in noise]
    assert sum(map(bool, found)) <= 2
    step = noise[0] + np.where(np.arange(60) >= 40, 2.0, 0.0)
    assert change_points(step, 0.2) == [40]


@pytest.mark.parametrize(
    ("figure", "expected"),
    [("load_warm_ms", -1), ("recovered_share", 1), ("offset_mean_m", -1), ("speed_mean", 0)],
)
def test_which_way_is_better_is_known_by_name(figure: str, expected: int) -> None:
    assert better(figure) == expected


def test_the_command_draws_each_figure_and_fails_on_the_last_one(
    tmp_path: Path, modeld: Modeld
) -> None:
    directory = write(tmp_path / "history", runs_of(*STEADY, *[13.0] * 6, 17.0))
    with (directory / FILE_NAME).open("a", encoding="utf-8") as file:
        file.write("{}\n")
    page = tmp_path / "page.html"
    done = modeld(1, "history", directory, "--html", page)
    assert "BEYOND" in done.out
    assert "median_ms: changed at 0000000000 (2026-11-28): 10 to 13" in done.out
    assert done.out.splitlines()[-1] == ("1 of 1 figure is outside the allowed range: median_ms.")
    assert "figures.jsonl:15: left out" in done.err
    found = Page(page)
    assert found.links == []
    assert found.seen.count("svg") == 1
    assert found.text.count('class="change"') == 1
    assert found.text.count("-dot") >= 14
    assert "17 at 0000000000, outside the allowed range: 12.74 to 13.26" in found.text
    answer = modeld(0, "history", directory, "--figure", "other*", "--json").json
    assert (answer["figures"], answer["runs"]) == ([], 14)


@pytest.mark.parametrize(
    ("values", "css"), [((10.0,), "unsure"), ((*STEADY, 10.0), "good"), ((*STEADY, 17.0), "bad")]
)
def test_the_head_of_the_page_is_good_only_where_a_figure_was_judged(
    tmp_path: Path, modeld: Modeld, values: tuple[float, ...], css: str
) -> None:
    directory = write(tmp_path / "history", runs_of(*values))
    page = tmp_path / "page.html"
    modeld(int(css == "bad"), "history", directory, "--html", page)
    assert f'<p class="lead {css}">' in page.read_text(encoding="utf-8")


def test_a_history_that_is_missing_is_refused_in_one_line(tmp_path: Path, modeld: Modeld) -> None:
    error = modeld.refused(2, "expected a history", "history", tmp_path / "none").err
    assert "--history" in error
