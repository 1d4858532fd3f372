"""``modeld regress`` from drive to verdict: planted changes are caught, named and accepted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tools.regress_drives
from runtime.device import choose_device
from tests.tools import tiny_driving
from tests.tools.conftest import FRAMES, SIZE, MakeVideo
from tests.tools.regress.here import run_here
from tests.tools.tiny_driving import write_tiny_driving
from tools.cli import main
from tools.playback.digests import DigestingProgram
from tools.playback.outcome import FrameTable
from tools.regress import job as regress_job
from tools.regress import run as regress_run
from tools.regress.job import Launches
from tools.regress.packing import FieldRule
from tools.regress.program_facts import ProgramFacts
from tools.regress.quantize import Scale
from tools.regress.reference import ReferenceStore
from tools.regress.rules import rule_of
from tools.regress.timing import Interval, TimingResult
from tools.regress.timing_process import timed_device
from tools.regress.verdict import frame_changes, input_changes, launch_changes, weight_changes

pytestmark = pytest.mark.opencl

Regress = Callable[..., int]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run jobs in this process: planted changes reach them, and nothing has to start."""

    monkeypatch.setattr(tools.regress_drives, "_run_jobs", run_here)


@pytest.fixture
def regress(tmp_path: Path, tiny_model: Path, make_video: MakeVideo, here: None) -> Regress:
    """Regress one video, or others; its reference has been written."""
    del here
    video = make_video()

    def call(*more: str, model: Path = tiny_model, drives: Sequence[Path] = (video,)) -> int:
        names = [str(drive) for drive in drives]
        timing = [] if "--timing" in more else ["--no-timing"]
        rest = [text for text in more if text != "--timing"]
        place = ["--reference", str(tmp_path / "references")]
        return main(["regress", "--model", str(model), *place, *timing, *rest, "--drives", *names])

    assert call("--update", "--reason", "the first one") == 0
    return call


def _files(tmp_path: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (tmp_path / "references").iterdir()}


def _model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: float, name: str) -> Path:
    """Return an artifact of the same model whose lane lines are moved by some metres."""
    vision_weights = tiny_driving._vision_weights

    def weights() -> Any:
        bias, mode = vision_weights()
        start, _ = tiny_driving.VISION_SLICES["lane_lines"]
        bias[start + 66 : start + 132 : 2] += moved
        return bias, mode

    with monkeypatch.context() as patch:
        patch.setattr(tiny_driving, "_vision_weights", weights)
        return write_tiny_driving(tmp_path / name, SIZE)


def test_an_unchanged_program_passes(
    regress: Regress, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _files(tmp_path)
    capsys.readouterr()
    assert regress() == 0
    said = capsys.readouterr().out
    assert f"passed  drive.mkv  {FRAMES} frames, identical" in said
    assert "1 drive passed" in said
    assert regress("--bit-exact") == 0
    # Accepting what did not change leaves the file, with its provenance, alone.
    assert regress("--update", "--reason", "again") == 0
    assert _files(tmp_path) == before


def test_processes_give_the_bytes_that_this_one_gives(
    regress: Regress,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    make_video: MakeVideo,
) -> None:
    drives = [make_video("drive.mkv"), make_video("other.mkv", frames=4)]
    assert regress("--update", "--reason", "two", drives=drives) == 0
    monkeypatch.undo()
    capsys.readouterr()
    assert regress("--json", "--bit-exact", "--jobs", "2", drives=drives) == 0
    result = json.loads(capsys.readouterr().out)
    assert [drive["identical"] for drive in result["drives"]] == [True, True]
    for drive in result["drives"]:
        assert drive["digest"] == drive["reference"]["digest"]
    assert not list(tmp_path.glob("modeld-regress-work-*"))


def test_moved_weights_are_caught_named_and_accepted(
    regress: Regress,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = _model(tmp_path, monkeypatch, 1e-3, "moved.pkl")
    report = tmp_path / "out.html"
    capsys.readouterr()
    assert regress("--report", str(report), model=model) == 1
    said = capsys.readouterr().out
    assert re.search(r"modelV2\.laneLines\[\]\.y: value in 9 frames from 0 on", said)
    assert "input" not in said
    assert "accept it with --update --reason TEXT" in said
    _check_page(report.read_text())
    assert regress("--update", "--reason", "wider lanes", model=model) == 0
    said = capsys.readouterr().out
    assert "accepted: weight vision_bias is not the reference's, and 2 more" in said
    (reference,) = ReferenceStore(tmp_path / "references").all()
    assert reference.provenance["reason"] == "wider lanes"
    assert reference.provenance["device"]
    assert regress(model=model) == 0
    assert regress() == 1


def test_a_change_within_the_tolerance_passes_but_is_not_bit_exact(
    regress: Regress,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = _model(tmp_path, monkeypatch, 2e-6, "nearly.pkl")
    capsys.readouterr()
    assert regress(model=model) == 1
    said = capsys.readouterr().out
    assert "1 change" in said
    assert "weight vision_bias is not the reference's" in said
    # Other kernels may want other bytes: then the outputs alone are judged.
    with monkeypatch.context() as patch:
        patch.setattr(tiny_driving, "SOURCE", f"// compiled otherwise\n{tiny_driving.SOURCE}")
        model = _model(tmp_path, monkeypatch, 2e-6, "otherwise.pkl")
    assert regress(model=model) == 0
    assert "9 frames, within tolerance" in capsys.readouterr().out
    assert regress("--bit-exact", model=model) == 1
    said = capsys.readouterr().out
    assert "modelV2: 9 of 9 messages differ in their bits, from message 0 on" in said
    assert "cameraOdometry" not in said


def test_a_tighter_table_of_tolerances_finds_nothing_in_what_did_not_change(
    regress: Regress,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def rules_of(factor: float) -> Any:
        def rule_of_coarse(service: str, field: str) -> FieldRule:
            rule = rule_of(service, field)
            scale = Scale(factor * rule.scale.absolute, factor * rule.scale.relative)
            return FieldRule(scale, rule.measured)

        return rule_of_coarse

    with monkeypatch.context() as patch:
        patch.setattr(regress_job, "rule_of", rules_of(1000.0))
        (path,) = (tmp_path / "references").iterdir()
        path.unlink()
        assert regress("--update", "--reason", "what was allowed once") == 0
    capsys.readouterr()
    assert regress() == 0
    assert "identical" in capsys.readouterr().out
    # What did change is seen as coarsely as it was written.
    assert regress(model=_model(tmp_path, monkeypatch, 0.5, "moved.pkl")) == 1


def test_a_changed_input_is_told_from_a_changed_program(
    regress: Regress, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, runs = DigestingProgram.run, []

    def swapped(self: DigestingProgram, inputs: Any, entry: str | None = None) -> Any:
        runs.append(entry)
        changed = dict(inputs)
        if len(runs) > 5:
            changed["wide_transform"] = np.asarray(inputs["wide_transform"]) * np.float32(2)
        return run(self, changed, entry)

    monkeypatch.setattr(DigestingProgram, "run", swapped)
    capsys.readouterr()
    assert regress("--json") == 1
    (drive,) = json.loads(capsys.readouterr().out)["drives"]
    first = drive["changes"][0]
    assert first["kind"] == "input"
    assert "input wide_transform differs from frame" in first["text"]
    assert "the cause lies before the program" in first["text"]
    inputs = [change for change in drive["changes"] if change["kind"] == "input"]
    assert len(inputs) == 1
    assert drive["comparison"]["findings"]


def test_another_model_and_another_drive_are_named(
    regress: Regress,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    make_video: MakeVideo,
) -> None:
    make = tiny_driving._Builder.manifest

    def renamed(self: Any) -> Any:
        manifest = make(self)
        for source in manifest["models"]:
            source["sha256"] = "1" * 64
        return manifest

    monkeypatch.setattr(tiny_driving._Builder, "manifest", renamed)
    model = write_tiny_driving(tmp_path / "other.pkl", SIZE)
    capsys.readouterr()
    assert regress(model=model) == 4
    assert "found one with another model," in capsys.readouterr().out
    assert regress(drives=[make_video(frames=5)]) == 4
    assert "another content of the drive," in capsys.readouterr().out


def test_a_drive_that_cannot_be_opened_does_not_stop_the_others(
    regress: Regress, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged.mkv"
    damaged.write_bytes(b"no video" * 100)
    capsys.readouterr()
    drives = [tmp_path / "gone.mkv", damaged, tmp_path / "drive.mkv"]
    assert regress("--json", drives=drives) == 4
    result = json.loads(capsys.readouterr().out)
    assert [drive["status"] for drive in result["drives"]] == ["failed", "failed", "passed"]
    assert "gone.mkv" in result["drives"][0]["error"]
    assert regress("--update", "--reason", "what ran", drives=drives) == 4


def test_a_damaged_reference_is_an_error_and_the_others_are_judged(
    regress: Regress,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make_video: MakeVideo,
) -> None:
    drives = [tmp_path / "drive.mkv", make_video("other.mkv", frames=4)]
    assert regress("--update", "--reason", "another", drives=drives) == 0
    (path,) = (tmp_path / "references").glob("drive-mkv*")
    path.write_bytes(path.read_bytes()[:-1])
    capsys.readouterr()
    assert regress(drives=drives) == 4
    said = capsys.readouterr().out
    assert "it is damaged: get it again" in said
    assert "passed  other.mkv" in said
    assert "1 of 2 drives could not be judged" in said


def test_two_runs_do_not_write_the_same_references(
    regress: Regress, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ReferenceStore(tmp_path / "references").lock():
        assert regress("--update", "--reason", "x") == 1
        assert "found another run that writes here" in capsys.readouterr().err
        assert regress() == 0  # reading needs no lock


def test_a_drive_without_a_valid_output_becomes_no_reference(
    regress: Regress, tmp_path: Path, capsys: pytest.CaptureFixture[str], make_video: MakeVideo
) -> None:
    model = write_tiny_driving(tmp_path / "nan.pkl", SIZE, bad_frame=1)
    before = _files(tmp_path)
    drives = [make_video("one.mkv", frames=1)]
    capsys.readouterr()
    assert regress("--update", "--reason", "x", model=model, drives=drives) == 1
    assert "such a drive is no reference" in capsys.readouterr().out
    assert _files(tmp_path) == before


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--update",), "--update: expected --reason TEXT"),
        (("--reason", "x"), "--reason: expected --update"),
        (("--jobs", "0"), "--jobs: expected at least 1"),
        (("--baseline", "x.pkl"), "--baseline: expected the timing gate"),
        (("--report", "/nowhere/x.html"), "expected its directory to exist"),
    ],
)
def test_options_that_cannot_work(
    regress: Regress, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], said: str
) -> None:
    assert regress(*more) == 2
    assert said in capsys.readouterr().err


def _timed(monkeypatch: pytest.MonkeyPatch, ratio: float) -> list[float | None]:
    """Let the timing gate measure what is said; return the references that it was given."""
    given: list[float | None] = []

    def measure(_artifact: Path, **options: Any) -> TimingResult:
        given.append(options["reference"])
        assert options["entry"] == "run"
        device = timed_device(choose_device().info)
        spread = Interval(ratio, 0.995 * ratio, 1.005 * ratio, (ratio,) * 4)
        return TimingResult(device, "processor", spread, None, 25.0, 0.0)

    monkeypatch.setattr(regress_run, "measure_timing", measure)
    return given


def test_the_timing_gate_fails_for_a_slower_program_and_does_not_creep(
    regress: Regress,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = _timed(monkeypatch, 7.0)
    assert regress("--timing") == 0
    assert "not judged" in capsys.readouterr().out
    assert regress("--timing", "--update", "--reason", "times") == 0
    assert "timing.json: run: new" in capsys.readouterr().out
    stored = _files(tmp_path)
    _timed(monkeypatch, 7.7)
    assert regress("--timing") == 1
    said = capsys.readouterr().out
    assert "+10.0%" in said
    assert "the program is slower" in said
    # Within the limit: the gate is open, and the reference stays what it was.
    _timed(monkeypatch, 7.2)
    assert regress("--timing", "--update", "--reason", "slower") == 0
    assert _files(tmp_path) == stored
    given = _timed(monkeypatch, 7.7)
    assert regress("--timing", "--update", "--reason", "a larger model") == 0
    assert given == [7.0]
    assert "accepted: timing: +10.0%" in capsys.readouterr().out
    assert regress("--timing", "--report", str(tmp_path / "out.html")) == 0
    assert "7.700 times the calibration workload" in (tmp_path / "out.html").read_text()


def _table(**changes: Any) -> FrameTable:
    ids = np.arange(10, 16)
    table = FrameTable(
        moment=ids,
        frame_id=ids,
        dropped=np.zeros(6, np.int64),
        published=np.ones(6, np.bool_),
        valid=np.ones(6, np.bool_),
        execution_s=np.zeros(6),
        input_crc={
            "desire": np.array([1, 1, 2, 1, 1, 1], np.uint32),
            "road_frame": np.arange(6).astype(np.uint32),
        },
    )
    return replace(table, **changes)


def test_a_lost_desire_is_said_to_be_one_frame() -> None:
    lost = _table(
        input_crc={
            "desire": np.ones(6, np.uint32),
            "road_frame": np.arange(6).astype(np.uint32),
        }
    )
    (change,) = input_changes(_table(), lost)
    assert "input desire differs first at frame 12 (1 of 6 frames)" in change.text
    assert input_changes(_table(), _table()) == []


def test_a_dropped_frame_is_named() -> None:
    keep = np.array([0, 1, 2, 4, 5])
    before = _table()
    dropped = np.zeros(6, np.int64)
    dropped[4] = 1
    now = FrameTable(
        moment=before.moment[keep],
        frame_id=before.frame_id[keep],
        dropped=dropped[keep],
        published=before.published[keep],
        valid=before.valid[keep],
        execution_s=before.execution_s[keep],
        input_crc={name: column[keep] for name, column in before.input_crc.items()},
    )
    texts = [change.text for change in frame_changes(before, now)]
    assert texts == [
        "frame 13 was taken, and is not",
        "frame 14: frames counted as missing before it: 0 before, 1 now",
    ]
    published = np.array([True, True, False, False, True, True])
    (change,) = frame_changes(before, _table(published=published))
    assert change.text == "frame 12: whether it was published: yes before, no now (2 frames)"


def test_a_weight_of_the_same_kernels_is_a_change_however_little_it_moves() -> None:
    before = ProgramFacts("a", {"w0 of /conv": "1", "w1 of /head": "2"})
    assert weight_changes(before, before) == []
    (change,) = weight_changes(before, ProgramFacts("a", {"w0 of /conv": "1", "w1 of /head": "3"}))
    assert change.kind == "weights"
    assert change.text == "weight w1 of /head is not the reference's"
    # Other kernels may want other bytes of the same values.
    assert weight_changes(before, ProgramFacts("b", {"w0 of /conv": "9"})) == []


def test_more_launches_are_a_change() -> None:
    before = {"run": Launches(99, 60)}
    (change,) = launch_changes(before, {"run": Launches(100, 60)})
    assert (
        change.text == "entry run: 99 launches of 60 kernels before, 100 launches of 60 kernels now"
    )
    assert launch_changes(before, before) == []


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]


def _check_page(text: str) -> None:
    page = _Page()
    page.feed(text)
    assert "script" not in page.tags
    assert all(link.startswith(("data:", "#")) for link in page.links)
    assert "modelV2.laneLines[].y" in text
    # The frame with both paths, a curve of the field, and both environments.
    assert 'class="path-before"' in text
    assert 'class="before"' in text
    assert "Where both sides ran" in text
    assert "medians:" in text
