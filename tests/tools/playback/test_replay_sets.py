"""``modeld replay`` of several drives and models: what is kept, what is refused, what is left."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cereal.log_reader import read_log
from tests.support.built import built
from tests.support.selection import quick_cases
from tests.tools.conftest import FRAMES, SIZE, MakeVideo, Modeld, Said
from tests.tools.page import Page
from tests.tools.playback.test_replay import interrupt
from tests.tools.tiny_driving import write_tiny_driving
from tools.errors import UsageError
from tools.playback.batch import file_name, provenance_path
from tools.playback.lock import lock_path, output_lock
from tools.playback.outcome import frames_path
from tools.playback.pictures import load_pictures, pictures_path, save_pictures

pytestmark = pytest.mark.opencl

BESIDE = ("", ".frames.npz", ".pictures.npz", ".json")


@pytest.fixture
def drives(make_video: MakeVideo) -> list[Path]:
    return [make_video("one.mkv"), make_video("two.mkv", frames=5)]


@pytest.fixture
def model(tmp_path: Path, tiny_model: Path) -> Path:
    return Path(shutil.copy(tiny_model, tmp_path / "good.pkl"))


@pytest.fixture
def bad(tiny_model: Path) -> Path:
    """One that answers with NaN in its eighth run."""
    del tiny_model

    def make(to: Path) -> None:
        write_tiny_driving(to / "bad.pkl", SIZE, bad_frame=8)

    return built("bad-in-8", make) / "bad.pkl"


class Replay:
    """Replays sets into a directory; models and options follow the drives."""

    def __init__(self, modeld: Modeld, out: Path) -> None:
        self.modeld, self.out = modeld, out

    def __call__(self, code: int, *words: object, out: Path | None = None) -> Said:
        return self.modeld(code, "replay", *words, "-o", out or self.out, "--no-progress")

    def kept(self, *words: object) -> list[bool]:
        return [figures["kept"] for figures in self(0, *words, "--json").json["drives"]]


@pytest.fixture
def replay(modeld: Modeld, tmp_path: Path) -> Replay:
    return Replay(modeld, tmp_path / "out")


def files(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_each_pair_has_its_log_and_all_have_one_report(
    replay: Replay, drives: list[Path], model: Path, bad: Path
) -> None:
    out = replay.out
    # The second model's answers are not finite once: exit code 1, and everything is there.
    said = replay(1, *drives, "--model", model, bad, "--json")
    summary = said.json
    assert "bad/one.mkv.rlog.zst: expected 9 valid messages" in said.err
    assert said.err.count("modeld: error:") == 1
    pairs = [(figures["drive"], Path(figures["model"]).stem) for figures in summary["drives"]]
    assert pairs == [(d, m) for d in ("one.mkv", "two.mkv") for m in ("good", "bad")]
    assert [figures["frames"] for figures in summary["drives"]] == [FRAMES, FRAMES, 5, 5]
    assert summary == json.loads((out / "summary.json").read_text(encoding="utf-8"))
    logs = {f"{m}/{d}.rlog.zst" for d, m in pairs}
    expected = {f"{log}{more}" for log in logs for more in BESIDE} | {"summary.json", "report.html"}
    assert set(files(out)) == expected
    for log in logs:
        models_said = [e for e in read_log(out / log) if e.which() == "modelV2"]
        assert len(models_said) == (FRAMES if "one" in log else 5)


def test_no_file_of_a_pair_replaces_an_input(
    replay: Replay, drives: list[Path], model: Path
) -> None:
    telemetry = replay.out / "good" / "two.mkv.rlog.zst.json"
    telemetry.parent.mkdir(parents=True)
    telemetry.write_text("t_s,speed_mps\n0,9\n", encoding="utf-8")
    before = files(replay.out)
    said = replay(2, *drives, "--model", model, "--telemetry", telemetry)
    assert f"provenance of two.mkv by good {telemetry}: expected another file than" in said.err
    assert files(replay.out) == before


@pytest.mark.slow
def test_report_shows_the_models_side_by_side(
    replay: Replay, drives: list[Path], model: Path, bad: Path, tmp_path: Path
) -> None:
    report = tmp_path / "page.html"
    words = (*drives, "--model", model, bad, "--report", report, "--limit", 6)
    replay(0, *words)
    assert not (replay.out / "report.html").exists()
    page = Page(report)
    assert not any(link and not link.startswith("data:") for link in page.links)
    assert "script" not in page.seen
    assert "nan" not in page.text
    # Two drives, two models, two pictures each; four charts of each drive with a line a model.
    assert page.seen.count("image") == 8
    assert [page.text.count(f'<path class="model-{i}"') for i in (0, 1)] == [8, 8]
    assert page.text.count("<h3>Execution time</h3>") == 2
    # Again, with nothing played: the same page, from what is kept.
    replay(0, *words)
    assert Page(report).text == page.text


def test_finished_pairs_are_kept(replay: Replay, drives: list[Path], model: Path) -> None:
    words = (*drives, "--model", model)
    assert replay.kept(*words) == [False, False]
    before = files(replay.out / "good")
    second = replay(0, *words, "--json").json["drives"]
    assert all(figures["kept"] for figures in second)
    assert [figures["execution_ms"]["median"] > 0 for figures in second] == [True, True]
    assert files(replay.out / "good") == before
    replay(0, *words, "--fresh")
    after = files(replay.out / "good")
    assert after.keys() == before.keys()
    assert all(after[name] > before[name] for name in before)


@pytest.mark.slow
def test_what_was_asked_for_otherwise_is_done_again(
    replay: Replay, drives: list[Path], model: Path, tmp_path: Path
) -> None:
    words = (*drives, "--model", model)
    assert replay.kept(*words) == [False, False]
    assert replay.kept(*words, "--limit", "4") == [False, False]
    assert replay.kept(*words, "--focal-px", "200") == [False, False]
    assert replay.kept(*words, "--focal-px", "200") == [True, True]
    assert replay.kept(*words) == [False, False]
    # A drive that changed, and an artifact that did.
    data = drives[1].read_bytes()
    drives[1].write_bytes(drives[0].read_bytes())
    assert replay.kept(*words) == [True, False]
    drives[1].write_bytes(data)
    shutil.copy(write_tiny_driving(tmp_path / "x.pkl", SIZE, bad_frame=99), model)
    assert replay.kept(*words) == [False, False]


DAMAGE: dict[str, Any] = {
    "no provenance": lambda log: provenance_path(log).unlink(),
    "no table": lambda log: frames_path(log).unlink(),
    "short log": lambda log: log.write_bytes(log.read_bytes()[:-10]),
    "bad provenance": lambda log: provenance_path(log).write_text('{"log_bytes":'),
}


@pytest.mark.parametrize("damage", quick_cases(DAMAGE, "no table"))
def test_partial_outcome_is_done_again(
    replay: Replay, drives: list[Path], model: Path, damage: str
) -> None:
    words = (*drives, "--model", model)
    replay(0, *words)
    log = replay.out / "good/one.mkv.rlog.zst"
    whole = log.read_bytes()
    DAMAGE[damage](log)
    assert (replay.kept(*words), log.read_bytes()) == ([False, True], whole)


def test_damaged_drive_does_not_stop_the_others(
    replay: Replay, drives: list[Path], model: Path, make_video: MakeVideo, tmp_path: Path
) -> None:
    cut = make_video("cut.avi", frames=40, codec="mpeg4")
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    large, missing = make_video("large.mkv", size=(320, 240)), tmp_path / "none.mp4"
    words = (drives[0], cut, large, missing, drives[1], "--model", model, "--json")
    said = replay(4, *words)
    assert [figures["drive"] for figures in said.json["drives"]] == ["one.mkv", "two.mkv"]
    lines, errors = said.err.splitlines(), said.json["errors"]
    assert len(lines) == len(errors) == 3
    for name in ("none.mp4: expected", "cut.avi: expected at least one picture", "320x240"):
        assert any(name in line for line in lines)
        assert any(name in line for line in errors)
    assert not [name for name in files(replay.out) if "cut" in name or "large" in name]
    assert "cut.avi" in (replay.out / "report.html").read_text(encoding="utf-8")
    # Nothing but the damaged ones is tried again.
    assert all(figures["kept"] for figures in replay(4, *words).json["drives"])


def test_same_names_are_told_apart(
    replay: Replay, model: Path, make_video: MakeVideo, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    first = make_video("d.mkv", frames=4)
    second = shutil.copy(make_video("e.mkv", frames=3), tmp_path / "a/d.mkv")
    other = write_tiny_driving(tmp_path / "a/good.pkl", SIZE, bad_frame=8)
    said = replay(0, first, second, "--model", model, other, "--json", "--limit", 3)
    logs = {figures["log"] for figures in said.json["drives"]}
    assert len(logs) == 4
    assert all(Path(log).is_file() for log in logs)


def test_names_of_files_and_pictures_that_cannot_be_read(tmp_path: Path) -> None:
    assert file_name("a2a0|2023-07-27--13-01-19--5") == "a2a0_2023-07-27--13-01-19--5"
    assert file_name("../../etc/passwd") == "_.._etc_passwd"
    assert file_name("...") == file_name("///") == "_"
    path = pictures_path(tmp_path / "o.rlog")
    assert load_pictures(path) == []
    path.write_bytes(b"no archive")
    assert load_pictures(path) == []
    save_pictures(path, [(7, b"jpeg")])
    assert load_pictures(path) == [(7, b"jpeg")]


def test_drive_may_stand_behind_the_model(replay: Replay, model: Path, video: Path) -> None:
    log = replay.out.with_suffix(".rlog")
    assert replay(0, "--model", model, video, "--json", out=log).json["frames"] == FRAMES


def test_second_writer_is_refused_in_one_line(
    replay: Replay, drives: list[Path], model: Path, tmp_path: Path
) -> None:
    replay.out.mkdir()
    for held, some in ((replay.out, drives), (tmp_path / "o.rlog.zst", drives[:1])):
        with output_lock(held):
            said = replay(2, *some, "--model", model, out=held).err
            assert f"found process {os.getpid()};" in said
            assert said.count("\n") == 1
        assert not lock_path(held).exists()
        replay(0, *some, "--model", model, out=held)
    assert not [name for name in files(tmp_path) if "lock" in name]


def test_lock_of_a_dead_process_locks_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tools.playback.lock import output_lock\n"
        "with output_lock(Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match=f"process {holder.pid}"), output_lock(tmp_path):
            pass
        holder.kill()
    assert lock_path(tmp_path).exists()
    with output_lock(tmp_path):
        pass
    assert not lock_path(tmp_path).exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_keeps_what_is_finished(
    replay: Replay, make_video: MakeVideo, model: Path, number: int, code: int
) -> None:
    videos = [make_video(f"{i}.mkv", frames=n) for i, n in enumerate((5, 9, 5))]
    words = [*videos, "--model", model]
    with pytest.MonkeyPatch.context() as patch:
        # In the second drive, the only one with that many frames.
        interrupt(patch, at=7, number=number)
        assert replay(code, *words).err.count("\n") == 1
    first = {f"good/0.mkv.rlog.zst{more}" for more in BESIDE}
    before = files(replay.out)
    assert (set(before), replay.kept(*words)) == (first, [True, False, False])
    assert {key: value for key, value in files(replay.out).items() if key in before} == before
