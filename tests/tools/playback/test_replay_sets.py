"""``modeld replay`` of several drives and models: what is kept, what is refused, what is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from cereal.log_reader import read_log
from tests.tools.conftest import FRAMES, SIZE, MakeVideo
from tests.tools.tiny_driving import write_tiny_driving
from tools.cli import main
from tools.errors import UsageError
from tools.playback.batch import file_name
from tools.playback.frame_table import frames_path
from tools.playback.lock import lock_path, output_lock
from tools.playback.pictures import load_pictures, pictures_path, save_pictures
from tools.playback.provenance import provenance_path

pytestmark = pytest.mark.opencl

Set = tuple[list[str], list[str], Path]


@pytest.fixture
def drives(make_video: MakeVideo) -> list[str]:
    return [str(make_video("one.mkv")), str(make_video("two.mkv", frames=5))]


@pytest.fixture
def models(tmp_path: Path, tiny_model: Path) -> list[str]:
    """Two artifacts; the second one answers with NaN in its eighth run."""
    shutil.copy(tiny_model, tmp_path / "good.pkl")
    write_tiny_driving(tmp_path / "bad.pkl", SIZE, bad_frame=8)
    return [str(tmp_path / "good.pkl"), str(tmp_path / "bad.pkl")]


def _replay(*arguments: str | Path) -> int:
    return main(["replay", *map(str, arguments), "--no-progress"])


def _files(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_each_pair_has_its_log_and_all_have_one_report(
    tmp_path: Path, drives: list[str], models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    # The second model's answers are not finite once: exit code 1, and everything is there.
    assert _replay(*drives, "--model", *models, "-o", out, "--json") == 1
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert "bad/one.mkv.rlog.zst: expected 9 valid messages" in captured.err
    assert captured.err.count("modeld: error:") == 1
    pairs = [(figures["drive"], Path(figures["model"]).stem) for figures in summary["drives"]]
    assert pairs == [(d, m) for d in ("one.mkv", "two.mkv") for m in ("good", "bad")]
    assert [figures["frames"] for figures in summary["drives"]] == [FRAMES, FRAMES, 5, 5]
    assert summary == json.loads((out / "summary.json").read_text(encoding="utf-8"))
    logs = {f"{m}/{d}.rlog.zst" for d, m in pairs}
    beside = ("", ".frames.npz", ".pictures.npz", ".json")
    expected = {f"{log}{more}" for log in logs for more in beside} | {"summary.json", "report.html"}
    assert set(_files(out)) == expected
    for log in logs:
        models_said = [e for e in read_log(out / log) if e.which() == "modelV2"]
        assert len(models_said) == (FRAMES if "one" in log else 5)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not any(name == "src" for name, _ in attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_report_shows_the_models_side_by_side(
    tmp_path: Path, drives: list[str], models: list[str]
) -> None:
    report = tmp_path / "page.html"
    out = tmp_path / "out"
    _replay(*drives, "--model", *models, "-o", out, "--report", report, "--limit", "6")
    assert not (out / "report.html").exists()
    text = report.read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert "script" not in page.seen
    assert "nan" not in text
    # Two drives, two models, two pictures each; four charts of each drive with a line a model.
    assert page.seen.count("image") == 8
    assert text.count('<path class="model-0"') == text.count('<path class="model-1"') == 8
    assert text.count("<h3>Execution time</h3>") == 2
    # Again, with nothing played: the same page, from what is kept.
    _replay(*drives, "--model", *models, "-o", out, "--report", report, "--limit", "6")
    assert report.read_text(encoding="utf-8") == text


def test_finished_pairs_are_kept(
    tmp_path: Path, drives: list[str], models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command: list[str | Path] = [*drives, "--model", models[0], "-o", out, "--json"]
    assert _replay(*command) == 0
    assert not any(figures["kept"] for figures in _json(capsys)["drives"])
    before = _files(out / "good")
    assert _replay(*command) == 0
    second = _json(capsys)["drives"]
    assert all(figures["kept"] for figures in second)
    assert [figures["execution_ms"]["median"] > 0 for figures in second] == [True, True]
    assert _files(out / "good") == before
    assert _replay(*command, "--fresh") == 0
    after = _files(out / "good")
    assert after.keys() == before.keys()
    assert all(after[name] > before[name] for name in before)


def test_what_was_asked_for_otherwise_is_done_again(
    tmp_path: Path, drives: list[str], models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command: list[str | Path] = [*drives, "--model", models[0], "-o", out, "--json"]

    def kept(*more: str) -> list[bool]:
        assert _replay(*command, *more) == 0
        return [figures["kept"] for figures in _json(capsys)["drives"]]

    assert kept() == [False, False]
    assert kept("--limit", "4") == [False, False]
    assert kept("--focal-px", "200") == [False, False]
    assert kept("--focal-px", "200") == [True, True]
    assert kept() == [False, False]
    # A drive that changed, and an artifact that did.
    data = Path(drives[1]).read_bytes()
    Path(drives[1]).write_bytes(Path(drives[0]).read_bytes())
    assert kept() == [True, False]
    Path(drives[1]).write_bytes(data)
    shutil.copy(write_tiny_driving(tmp_path / "x.pkl", SIZE, bad_frame=99), models[0])
    assert kept() == [False, False]


@pytest.mark.parametrize("damage", ["no provenance", "no table", "short log", "bad provenance"])
def test_partial_outcome_is_done_again(
    tmp_path: Path,
    drives: list[str],
    models: list[str],
    damage: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    command: list[str | Path] = [*drives, "--model", models[0], "-o", out, "--json"]
    assert _replay(*command) == 0
    capsys.readouterr()
    log = out / "good/one.mkv.rlog.zst"
    whole = log.read_bytes()
    if damage == "no provenance":
        provenance_path(log).unlink()
    elif damage == "no table":
        frames_path(log).unlink()
    elif damage == "short log":
        log.write_bytes(whole[:-10])
    else:
        provenance_path(log).write_text('{"log_bytes":', encoding="utf-8")
    assert _replay(*command) == 0
    assert [figures["kept"] for figures in _json(capsys)["drives"]] == [False, True]
    assert log.read_bytes() == whole


def test_damaged_drive_does_not_stop_the_others(
    tmp_path: Path,
    drives: list[str],
    models: list[str],
    make_video: MakeVideo,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cut = make_video("cut.avi", frames=40, codec="mpeg4")
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    large = make_video("large.mkv", size=(320, 240))
    missing = tmp_path / "none.mp4"
    out = tmp_path / "out"
    command: list[str | Path] = [
        drives[0],
        cut,
        large,
        missing,
        drives[1],
        "--model",
        models[0],
        "-o",
        out,
    ]
    assert _replay(*command, "--json") == 4
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert [figures["drive"] for figures in summary["drives"]] == ["one.mkv", "two.mkv"]
    lines = captured.err.splitlines()
    assert len(lines) == len(summary["errors"]) == 3
    for name in ("none.mp4: expected", "cut.avi: expected 40 frames", "320x240"):
        assert any(name in line for line in lines)
        assert any(name in line for line in summary["errors"])
    assert not [name for name in _files(out) if "cut" in name or "large" in name]
    assert "cut.avi" in (out / "report.html").read_text(encoding="utf-8")
    # Nothing but the damaged ones is tried again.
    assert _replay(*command, "--json") == 4
    assert all(figures["kept"] for figures in _json(capsys)["drives"])


def test_same_names_are_told_apart(
    tmp_path: Path, models: list[str], make_video: MakeVideo, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").mkdir()
    first = make_video("d.mkv")
    second = shutil.copy(make_video("e.mkv", frames=4), tmp_path / "a/d.mkv")
    other = shutil.copy(models[1], tmp_path / "a/good.pkl")
    out = tmp_path / "out"
    _replay(first, second, "--model", models[0], other, "-o", out, "--json", "--limit", "3")
    logs = {figures["log"] for figures in _json(capsys)["drives"]}
    assert len(logs) == 4
    assert all(Path(log).is_file() for log in logs)


def test_names_of_files() -> None:
    assert file_name("a2a0|2023-07-27--13-01-19--5") == "a2a0_2023-07-27--13-01-19--5"
    assert file_name("../../etc/passwd") == "_.._etc_passwd"
    assert file_name("...") == file_name("///") == "_"


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("out.rlog.zst", "expected a directory for several drives or models, found the name of a"),
        ("good.pkl", "expected a directory for several drives or models, found a file"),
        ("none/out", "cannot be made"),
    ],
)
def test_output_of_a_set_is_a_directory(
    tmp_path: Path,
    drives: list[str],
    models: list[str],
    output: str,
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = _files(tmp_path)
    assert _replay(*drives, "--model", models[0], "-o", tmp_path / output) == 2
    captured = capsys.readouterr().err
    assert text in captured
    assert captured.count("\n") == 1
    assert _files(tmp_path) == before


def test_drive_may_stand_behind_the_model(
    tmp_path: Path, drives: list[str], models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _replay("--model", models[0], drives[1], "-o", tmp_path / "o.rlog", "--json") == 0
    assert _json(capsys)["frames"] == 5
    assert _replay("--model", models[0], "-o", tmp_path / "p.rlog") == 2
    assert "expected at least one drive, found none" in capsys.readouterr().err


# --- locks ----------------------------------------------------------------------------------------


def test_second_writer_is_refused_in_one_line(
    tmp_path: Path, drives: list[str], models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    single = tmp_path / "o.rlog.zst"
    pairs: list[tuple[Path, list[str | Path]]] = [
        (out, [*drives, "--model", models[0], "-o", out]),
        (single, [drives[0], "--model", models[0], "-o", single]),
    ]
    for held, command in pairs:
        with output_lock(held):
            assert _replay(*command) == 2
            captured = capsys.readouterr()
            assert f"found process {os.getpid()} at it" in captured.err
            assert captured.err.count("\n") == 1
        assert not lock_path(held).exists()
        assert _replay(*command) == 0
    assert not [name for name in _files(tmp_path) if "lock" in name]


@pytest.mark.alone
def test_lock_of_a_dead_process_locks_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tools.playback.lock import output_lock\n"
        "with output_lock(Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match=f"process {holder.pid}"), output_lock(tmp_path):
            pass
        holder.kill()
    assert lock_path(tmp_path).exists()
    with output_lock(tmp_path):
        pass
    assert not lock_path(tmp_path).exists()


# --- interrupts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "expected"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_interrupt_keeps_what_is_finished(
    tmp_path: Path, make_video: MakeVideo, tiny_model: Path, name: str, expected: int
) -> None:
    videos = [make_video(f"{i}.mkv", frames=n) for i, n in enumerate((5, 9, 5))]
    # Interrupts itself in the second drive, the only one with that many frames.
    code = (
        "import os, signal, sys\n"
        "from tools.playback.session import PlaybackSession\n"
        "from tools.cli import main\n"
        # A shell that runs the tests in the background has it ignored, and children inherit that.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "step = PlaybackSession.step\n"
        "def interrupted(self, moment):\n"
        "    if moment.index == 7: os.kill(os.getpid(), getattr(signal, sys.argv.pop(1)))\n"
        "    return step(self, moment)\n"
        "PlaybackSession.step = interrupted\n"
        "sys.exit(main(['replay', *sys.argv[2:]]))\n"
    )
    out = tmp_path / "out"
    folder = out / tiny_model.stem
    command = [*map(str, videos), "--model", str(tiny_model), "-o", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", code, name, *command], capture_output=True, check=False
    )
    assert done.returncode == expected, done.stderr
    assert done.stderr.count(b"\n") == 1
    first = {f"0.mkv.rlog.zst{more}" for more in ("", ".frames.npz", ".pictures.npz", ".json")}
    assert {path.name for path in out.rglob("*") if path.is_file()} == first
    before = _files(folder)
    assert main(["replay", *command]) == 0
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert [figures["kept"] for figures in summary["drives"]] == [True, False, False]
    assert {key: value for key, value in _files(folder).items() if key in before} == before


def test_pictures_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    path = pictures_path(tmp_path / "o.rlog")
    assert load_pictures(path) == []
    path.write_bytes(b"no archive")
    assert load_pictures(path) == []
    save_pictures(path, [(7, b"jpeg")])
    assert load_pictures(path) == [(7, b"jpeg")]
