"""What `modeld regress` tells programs: JUnit, Markdown, error lines; shards, drives, commits."""

import os
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import av
import pytest

from tests.tools.conftest import MakeVideo
from tests.tools.regress.conftest import Regress, changes, moved_lines
from tests.tools.regress.recipe import git
from tools.behaviour.gates import GateVerdict
from tools.commands.on_drives import regress_drives
from tools.drives.open_drive import DriveOptions
from tools.errors import CompareError
from tools.regress.job import Shard, parse_shard, single_drives
from tools.regress.judge.frame_changes import Change
from tools.regress.judge.reference import ReferenceStore
from tools.regress.judge.verdict import DriveVerdict, failed
from tools.regress.run import RunVerdict, TimingOutcome
from tools.regress.tell import page
from tools.regress.tell.summary import conclusion, error_lines, junit, markdown
from tools.regress.tell.whole import WholeVerdict
from tools.regress.time.timing import Interval, TimingResult, TimingVerdict

CHANGED = DriveVerdict("a", "changed", 9, changes=(Change("outputs", "left | <b> %\n @all"),) * 2)
PASSED = DriveVerdict("b", "passed", 9)
FAILED = failed("c\x1b", "no reference", 4)
TIMES = TimingResult("cpu", "processor", Interval(7.0, 6.9, 7.1, (7.0,) * 4), None, 25.0, 0.0)
NOT_JUDGED = TimingOutcome("run", TimingVerdict(True, None, "timing: no reference"), TIMES)
SLOWER = TimingOutcome("run", TimingVerdict(False, 0.1, "timing: +10.0%"), TIMES)
NOT_MEASURED = TimingOutcome("run", TimingVerdict(False, None, "a process failed"))
UNKNOWN = GateVerdict("all.y < 1", "all.y", None, holds=True, note="nothing to judge")
NOT_HELD = WholeVerdict(gates=(GateVerdict("all.x < 1", "all.x", 2.0, holds=False), UNKNOWN))
ACCEPT = 'If intended, accept with `modeld regress ... --update --reason "..."`.'


def verdict(*drives: DriveVerdict, timing: TimingOutcome | None = None, **more: Any) -> RunVerdict:
    return RunVerdict(drives, (timing,) if timing else (), **more)


CONCLUSIONS = [
    (verdict(PASSED), 0, "1 drive passed"),
    (verdict(PASSED, timing=NOT_JUDGED), 0, "1 drive passed; its speed was not judged"),
    (
        verdict(CHANGED, CHANGED),
        1,
        f"2 of 2 drives changed. {ACCEPT}",
    ),
    (verdict(PASSED, FAILED), 4, "1 of 2 drives could not be judged"),
    (verdict(CHANGED, FAILED), 4, "1 of 2 drives could not be judged; 1 changed"),
    (
        verdict(PASSED, timing=SLOWER),
        1,
        f"the program is slower. {ACCEPT}",
    ),
    (
        verdict(PASSED, timing=NOT_MEASURED),
        1,
        "the speed could not be measured. Read the messages above, and run again.",
    ),
    (
        verdict(PASSED, whole=NOT_HELD, against="old.pkl"),
        1,
        "1 gate over all drives not held. "
        + ACCEPT.replace("--update", "--reference DIR --update"),
    ),
    (verdict(), 0, "no drive in this shard"),
]


@pytest.mark.parametrize(("found", "code", "text"), CONCLUSIONS)
def test_the_head_of_the_page_is_the_conclusion(found: RunVerdict, code: int, text: str) -> None:
    css = {0: "good", 1: "bad", 4: "unsure"}[code]
    # A command is set as one.
    before, *command = escape(text).split("`")
    shown = f"{before}<code>{command[0]}</code>{command[1]}" if command else before
    assert page._summary(found).startswith(f'<p class="lead {css}">{shown}</p>')


@pytest.mark.parametrize(("found", "code", "text"), CONCLUSIONS)
def test_the_conclusion_says_what_to_do_where_something_changed(
    found: RunVerdict, code: int, text: str
) -> None:
    assert (found.exit_code, conclusion(found)) == (code, text)


def test_junit_tells_changed_from_failed_and_from_not_judged() -> None:
    found = verdict(CHANGED, PASSED, FAILED, timing=NOT_JUDGED, whole=NOT_HELD)
    (suite,) = ET.fromstring(junit(found))  # noqa: S314 - our own text
    numbers = [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert numbers == ["6", "2", "1", "2"]
    cases = {case.get("name"): [child.tag for child in case] for case in suite}
    assert cases["a"] == ["failure", "system-out"]
    assert cases["b"] == ["system-out"]
    # A terminal's control characters are none of XML's.
    assert cases["c?"] == ["error", "system-out"]
    assert cases["run"] == ["skipped"]
    assert cases["all.x < 1"] == ["failure"]
    assert cases["all.y < 1"] == ["skipped"]
    (failure,) = suite.findall("testcase[@name='a']/failure")
    assert "left | <b> %" in str(failure.get("message"))
    for timing, tags in ((SLOWER, ["failure"]), (NOT_MEASURED, ["error"])):
        (suite,) = ET.fromstring(junit(verdict(timing=timing)))  # noqa: S314 - our own text
        assert [child.tag for child in suite[0]] == tags


def test_markdown_shows_text_as_text_and_never_passed_for_not_judged() -> None:
    text = markdown(verdict(CHANGED, timing=NOT_JUDGED), [("a", "frame 8", "https://x/8.jpg")])
    assert text.startswith("### modeld regress: changed\n")
    assert "| ❌ changed | a | 9 frames, 2 changes |" in text
    assert "| ⏭️ not judged | run | timing: no reference |" in text
    assert "passed" not in text
    assert "- left &#124; &#60;b&#62; %? &#64;all" in text
    assert "![frame 8](https://x/8.jpg)" in text
    assert markdown(verdict(FAILED)).startswith("### modeld regress: could not be judged\n")
    assert "--update" not in markdown(verdict(FAILED))


def test_error_lines_are_workflow_commands() -> None:
    found = error_lines(verdict(CHANGED, PASSED, FAILED, timing=SLOWER, whole=NOT_HELD))
    assert found == [
        "::error title=modeld regress%3A a::left | <b> %25%0A @all (and 1 more)",
        "::error title=modeld regress%3A c?::could not be judged: no reference",
        "::error title=modeld regress%3A Over all drives::all.x < 1: 2",
        "::error title=modeld regress%3A speed of run::timing: +10.0%25",
    ]
    assert error_lines(verdict(PASSED, timing=NOT_JUDGED)) == []
    assert len(error_lines(verdict(*[CHANGED] * 30))) == 10


def test_the_kernel_that_is_slower_is_named_wherever_the_speed_is_told() -> None:
    blamed = TimingVerdict(False, 0.1, "timing: +10.0%", ("slower kernel: k, nodes /a",))
    found = verdict(PASSED, timing=replace(SLOWER, verdict=blamed))
    told = "timing: +10.0%; slower kernel: k, nodes /a"
    assert f"| ❌ changed | run | {told} |" in markdown(found)
    (line,) = error_lines(found)
    assert line.endswith(told.replace("%", "%25"))
    (failure,) = ET.fromstring(junit(found)).findall(".//failure")  # noqa: S314 - our own text
    assert failure.get("message") == "timing: +10.0%"
    assert failure.text == told.replace("; ", "\n")


def test_the_states_of_the_timing_gate() -> None:
    passed = replace(SLOWER, verdict=TimingVerdict(True, 0.01, "timing: +1.0%"))
    for timing, status in (
        (NOT_JUDGED, "not judged"),
        (SLOWER, "changed"),
        (NOT_MEASURED, "failed"),
        (passed, "passed"),
    ):
        assert timing.to_json()["status"] == status


@pytest.mark.opencl
def test_files_of_a_run_that_changed(regress: Regress, tmp_path: Path) -> None:
    model = moved_lines(tmp_path / "moved.pkl", 0.5)
    files = ("--junit", tmp_path / "junit.xml", "--markdown", tmp_path / "summary.md")
    said = regress(1, *files, "--pictures", tmp_path / "pictures", "--annotations", model=model)
    assert said.err.startswith("::error title=modeld regress%3A drive.mkv::")
    (suite,) = ET.parse(tmp_path / "junit.xml").getroot()  # noqa: S314 - our own text
    assert suite.get("failures") == "1"
    pictures = sorted((tmp_path / "pictures").iterdir())
    assert pictures
    text = (tmp_path / "summary.md").read_text(encoding="utf-8")
    for picture in pictures:
        assert f"](pictures/{picture.name})" in text
        with av.open(str(picture)) as container:
            assert container.streams.video[0].codec_context.name == "mjpeg"
    regress(1, *files, "--pictures", tmp_path / "p", "--picture-url", "https://x/1", model=model)
    assert "](https://x/1/1-drive-mkv-" in (tmp_path / "summary.md").read_text(encoding="utf-8")


@pytest.mark.opencl
def test_a_truth_that_is_of_no_use_does_not_hide_what_changed(
    regress: Regress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_given: object) -> None:
        raise CompareError("truth.npz: damaged")

    monkeypatch.setattr(regress_drives, "_truth_of", damaged)
    assert "compared without the truth: truth.npz: damaged" in regress(0).out
    found = changes(regress(1, "--json", model=moved_lines(tmp_path / "moved.pkl", 0.5)))
    assert any("laneLines" in text for text in found)


@pytest.mark.slow
@pytest.mark.opencl
def test_a_drive_that_is_named_twice_is_judged_once(regress: Regress, tmp_path: Path) -> None:
    link = tmp_path / "link.mkv"
    link.symlink_to(regress.video)
    again = regress.video.parent / "." / regress.video.name
    said = regress(0, drives=[regress.video, again, regress.video]).out
    assert said.endswith("\n1 drive passed\n")
    assert regress(0, drives=[regress.video, link]).out.endswith("\n1 drive passed\n")


def test_one_file_by_two_names_is_one_drive(make_video: MakeVideo, tmp_path: Path) -> None:
    video = make_video("one.mkv", frames=1)
    link = tmp_path / "link.mkv"
    link.symlink_to(video)
    texts = [str(video), "gone.mkv", str(link), "gone.mkv"]
    found = [text for text, _ in single_drives(texts, DriveOptions())]
    assert found == [str(video), "gone.mkv"]


def split(drives: Sequence[str], count: int) -> list[list[str]]:
    """Return the drives of each shard."""
    shards = [Shard(index, count) for index in range(1, count + 1)]
    return [[drive for drive in drives if shard.has(drive)] for shard in shards]


def test_shards_are_a_stable_split() -> None:
    drives = [f"/data/drives/0000{number:04}--{number % 7}" for number in range(400)]
    parts = split(drives, 4)
    assert sorted(drive for part in parts for drive in part) == drives
    assert all(60 < len(part) < 140 for part in parts)
    # Drives that come, and machines with other directories, leave the others where they are.
    elsewhere = [drive.replace("/data", "mnt") for drive in drives[::2]]
    for part, fewer in zip(parts, split(elsewhere, 4), strict=True):
        assert [one.replace("mnt", "/data") for one in fewer] == [
            one for one in part if one in drives[::2]
        ]
    assert parse_shard("2/4") == Shard(2, 4)
    # A name that is no drive is told by one shard only.
    texts = ["gone.mkv"]
    told = [[*single_drives(texts, DriveOptions(), Shard(index, 2))] for index in (1, 2)]
    assert sorted(map(len, told)) == [0, 1]


@pytest.mark.slow
@pytest.mark.opencl
def test_a_shard_runs_its_drives_only(regress: Regress, make_video: MakeVideo) -> None:
    drives = [regress.video, make_video("other.mkv", frames=4)]
    regress.update("two", drives=drives)
    judged = []
    for index in (1, 2):
        found = regress(0, "--shard", f"{index}/2", "--json", drives=drives).json
        judged += [drive["name"] for drive in found["drives"]]
        regress(0, "--shard", f"{index}/2", drives=drives)
    assert sorted(judged) == ["drive.mkv", "other.mkv"]


@pytest.mark.slow
@pytest.mark.opencl
def test_references_hold_the_commit_of_the_repository_that_they_lie_in(
    regress: Regress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "users"
    repository.mkdir()
    for name in ("GIT_DIR", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    git(repository, "init", "-q")
    (repository / "model.gates").write_text("# none\n", encoding="utf-8")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "first")
    place = replace(regress, references=repository / "new" / "references")
    place.update("in a repository")
    (reference,) = ReferenceStore(place.references).all()
    assert reference.provenance["commit"] == git(repository, "rev-parse", "HEAD")
    assert reference.provenance["modified"] == "False"
    ours = git(Path(__file__).parent, "rev-parse", "HEAD")
    assert reference.provenance["commit of modeld"] == ours
    assert os.path.commonpath([place.references, repository]) == str(repository)
