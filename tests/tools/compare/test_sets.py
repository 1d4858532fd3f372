"""``modeld compare DIR DIR`` and ``--table``: logs of several drives, and of several models."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.tools.behaviour.made_models import Made, message
from tests.tools.behaviour.test_behaviour import write as write_truth
from tests.tools.compare.made_logs import write_log
from tests.tools.conftest import Modeld
from tests.tools.page import Page
from tools.lib.json_output import json_text
from tools.playback.batch import provenance_path
from tools.playback.outcome import FrameTable, frames_path, save_frames
from tools.regress.tell.whole import costs_of
from tools.report.history import read_history

Logs = Callable[..., Path]


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    """Write a directory of logs as modeld replay does, whose left line is where it is asked for."""

    def write(
        name: str, left_m: float = -1.8, drives: tuple[str, ...] = ("a", "b"), ms: float = 10.0
    ) -> Path:
        place = tmp_path / "o" / name
        place.mkdir(parents=True)
        for drive in drives:
            events = [message(frame, Made(left_m=left_m)) for frame in range(4)]
            log = write_log(place / f"{drive}.rlog", events)
            save_frames(frames_path(log), table(ms))
            noted = json_text({"artifact_bytes": int(1000 * ms)})
            provenance_path(log).write_text(noted, encoding="utf-8")
        return place

    return write


def table(ms: float) -> FrameTable:
    return FrameTable(
        moment=np.arange(4),
        frame_id=np.arange(4),
        dropped=np.zeros(4, np.int64),
        published=np.ones(4, np.bool_),
        valid=np.ones(4, np.bool_),
        execution_s=np.full(4, 1e-3 * ms),
        input_crc={},
    )


def test_drives_are_paired_by_name_and_judged_as_one(
    logs: Logs, modeld: Modeld, tmp_path: Path
) -> None:
    old, new = logs("old"), logs("new", -1.7, ms=11.0)
    assert modeld(0, "compare", old, old).out.endswith("2 drives agree\n")
    said = modeld(1, "compare", old, new).out
    assert "DIFFER  a  " in said
    assert said.endswith("2 of 2 drives differ\n")
    gates = ("--gates-only", "--gate", "left_line_10m_max_m < 0.11")
    page = tmp_path / "out.html"
    said = modeld(0, "compare", old, new, *gates, "--html", page).out
    assert "AGREE   a  all gates hold" in said
    assert "execution, median ms  10      11      +10.0%" in said
    assert "artifact, bytes       10,000  11,000  +10.0%" in said
    text = Page(page).text
    assert "Over all drives" in text
    # The conclusion leads, and findings are folded.
    assert '<p class="good">2 drives agree.</p>' in text
    assert text.index("finding</summary>") < text.index("modelV2.laneLines")
    all_of_them = ("--gates-only", "--gate", "all.execution_ratio < 1.05")
    said = modeld(1, "compare", old, new, *all_of_them).out
    assert "FAILS  all.execution_ratio < 1.05: 1.1" in said
    assert said.endswith("1 gate over all drives not held\n")
    found = modeld(1, "compare", old, new, "--json").json
    assert [drive["drive"] for drive in found["drives"]] == ["a", "b"]
    (row,) = [one for one in found["whole"]["quantities"] if one["quantity"] == "left_line_10m"]
    # Four frames of each of two drives.
    assert row["spread"]["frames"] == 8
    assert row["bias"] == pytest.approx(0.1)


def test_a_drive_of_one_side_only_could_not_be_compared(logs: Logs, modeld: Modeld) -> None:
    old, new = logs("old"), logs("new", drives=("b", "c"))
    said = modeld(4, "compare", old, new).out
    assert "expected the drive on both sides, found it in old only" in said
    assert "expected the drive on both sides, found it in new only" in said
    assert said.endswith("2 of 3 drives could not be compared\n")
    (new / "b.rlog").write_bytes(b"no log")
    assert "3 of 3 drives could not be compared" in modeld(4, "compare", old, new).out


def test_what_is_no_directory_of_logs_is_refused(logs: Logs, modeld: Modeld) -> None:
    old, new = logs("old"), logs("new")
    modeld.refused(4, "name one of its directories: new, old", "compare", old.parent, new)
    modeld.refused(4, "old: expected a log like", "compare", old, new / "a.rlog")
    modeld.refused(2, "--table takes several", "compare", old, new, old)
    shutil.copy(old / "a.rlog", old / "a.qlog")
    modeld.refused(4, "expected one log of each drive, found a.qlog", "compare", old, new)


def test_candidates_stand_side_by_side(logs: Logs, modeld: Modeld, tmp_path: Path) -> None:
    places = [logs("old"), logs("near", -1.72, ms=11.0), logs("far", -1.9, ("a", "b", "c"), 9.0)]
    said = modeld(0, "compare", "--table", *places, "--gate", "left_line_10m_max_m < 0.09").out
    assert "omitted, since not all have them: c" in said
    lines = {line.split("  ")[0]: line.split() for line in said.splitlines()}
    assert lines["left_line_10m"][1:] == ["m", "0,", "0", "0.08,", "0.08", "0.1,", "0.1"]
    assert lines["artifact"][-3:] == ["10,000", "11,000", "9,000"]
    assert lines["gate all.left_line_10m_max_m < 0.09"][-3:] == ["holds", "holds", "FAILS"]
    # With a truth, each has its own distance to it: the true line is at -1.7 m.
    for drive in ("a", "b"):
        write_truth(tmp_path / "truth" / drive / "truth.npz")
    page = tmp_path / "out.html"
    truth = ("--truth", tmp_path / "truth", "--html", page)
    found = modeld(0, "compare", "--table", *places, *truth, "--json").json
    errors = []
    for candidate in found["candidates"]:
        (row,) = [one for one in candidate["quantities"] if one["quantity"] == "left_line_10m"]
        errors.append(row["right_error"]["spread"]["mean"])
    assert errors == pytest.approx([0.1, 0.02, 0.2], rel=1e-5)
    times = [one["costs"]["execution_ms"] for one in found["candidates"]]
    assert times == pytest.approx([10.0, 11.0, 9.0])
    text = Page(page).text
    assert "Distance to the truth" in text
    # The least time is marked, and a row in which all are the same has no best.
    assert text.count('<td class="number best">9 ms</td>') == 2
    assert '<td class="number best">9,000 bytes</td>' in text
    one, other = places[0] / "a.rlog", places[1] / "b.rlog"
    assert "over 1 drive" in modeld(0, "compare", "--table", one, other, one).out


def test_results_stand_side_by_side(modeld: Modeld, tmp_path: Path) -> None:
    paths = []
    for name, offset in (("x", 0.1), ("y", 0.2), ("z", 0.3)):
        paths.append(tmp_path / f"{name}.json")
        content = {"offset_m": offset, "frames": 9, "wall_s": offset, "gap_s": None}
        paths[-1].write_text(json_text(content), encoding="utf-8")
    said = modeld(0, "compare", "--table", *paths).out
    assert "1 figure differs" in said
    assert said.splitlines()[-1].split() == ["offset_m", "0.1", "0.2", "0.3"]
    log = write_log(tmp_path / "a.rlog", [message(0)])
    modeld.refused(2, "expected logs or results", "compare", "--table", paths[0], log)
    modeld.refused(
        2, "--bit-exact: expected no --table", "compare", "--table", log, log, "--bit-exact"
    )


def test_costs_by_hand() -> None:
    costs = costs_of([[0.0, 0.01, 0.02], [0.03]], 5)
    assert costs.execution_ms == pytest.approx(20.0)
    assert costs.p99_ms == pytest.approx(29.8)
    assert costs.artifact_bytes == 5.0
    assert np.isnan(costs_of([], None)).all()


def test_a_history_keeps_what_a_set_and_each_candidate_differ_by(
    logs: Logs, modeld: Modeld, tmp_path: Path
) -> None:
    old, new, far = logs("old"), logs("new", -1.7, ms=11.0), logs("far", -1.9)
    history = tmp_path / "history"
    modeld(1, "compare", old, new, "--history", history)
    modeld(0, "compare", "--table", old, new, far, "--history", history)
    for name, offset_m in (("a", 0.25), ("b", 0.5)):
        (tmp_path / f"{name}.json").write_text(f'{{"offset_m": {offset_m}, "same": 1}}')
    results = tmp_path / "a.json", tmp_path / "b.json"
    modeld(0, "compare", "--table", *results, "--history", history)
    runs, damaged = read_history(history)
    assert not damaged
    assert [run.command for run in runs] == ["compare"] * 4
    subjects = ["old and new", "old and new", "old and far", "a and b"]
    assert [run.subject for run in runs] == subjects
    assert runs[0].figures == runs[1].figures
    assert runs[0].figures["left_line_10m_max_m"] == pytest.approx(0.1)
    assert runs[0].figures["execution_ratio"] == pytest.approx(1.1)
    assert runs[0].figures["artifact_bytes"] == 11_000
    assert runs[3].figures == {"offset_m": 0.5, "same": 1.0}
    # Where no drive could be compared there is nothing to keep.
    lost = logs("lost", drives=("c",))
    modeld(4, "compare", old, lost, "--history", history)
    assert len(read_history(history)[0]) == 4
