"""``modeld regress``: planted changes are caught, named and accepted, or judged in metres."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.opencl.device import choose_device
from tests.tools import tiny_driving
from tests.tools.conftest import FRAMES, SIZE, MakeVideo, Modeld
from tests.tools.films import cut
from tests.tools.page import Page
from tests.tools.regress.conftest import (
    Regress,
    changes,
    edited_manifest,
    edited_tiny,
    moved_lines,
)
from tests.tools.regress.fault import plant
from tests.tools.regress.planted import Planted
from tests.tools.tiny_driving import write_tiny_driving
from tools.behaviour.describe import TITLE
from tools.behaviour.difference import figure_names
from tools.behaviour.gates import parse_gates
from tools.commands.on_drives.regress_drives import _run_jobs
from tools.playback.outcome import FrameTable
from tools.playback.run_drive import DigestingProgram
from tools.regress import job as regress_job
from tools.regress import run as regress_run
from tools.regress.judge.frame_changes import frame_changes
from tools.regress.judge.leaves import Scale
from tools.regress.judge.packing import FieldRule, rule_of
from tools.regress.judge.reference import ReferenceStore
from tools.regress.time.timing import (
    FrameTiming,
    Interval,
    KernelChange,
    Kernels,
    LaunchTime,
    StoredTiming,
    TimingResult,
)
from tools.regress.time.timing_frames import read_frames
from tools.regress.time.timing_sides import Measurement
from tools.regress.timing_process import timed_device
from tools.report.history import read_history

pytestmark = pytest.mark.opencl


def test_an_unchanged_program_passes_and_holds_its_gates(regress: Regress) -> None:
    before = regress.files()
    said = regress(0).out
    assert f"passed  drive.mkv  {FRAMES} frames, identical" in said
    assert "1 drive passed" in said
    regress(0, "--bit-exact")
    # Accepting what did not change leaves the file, with its provenance, alone.
    regress.update("again")
    assert regress.files() == before
    said = regress(0, "--gate", "lateral_2s_max_m < 1e-6", "--gate", "lead_seen_mean <= 0").out
    assert "identical, 2 gates held" in said
    assert "holds  lateral_2s_max_m < 1e-06: 0\n" in said


def test_a_damaged_video_has_no_reference(
    regress: Regress, make_video: MakeVideo, tmp_path: Path
) -> None:
    """Fewer frames would pass for ever."""
    before, short = regress.files(), cut(make_video("cut.mkv", frames=30), 0.6)
    report = ("--report", tmp_path / "out.html")
    for said in (regress(4, *report, drives=[short]), regress.update("cut", 4, drives=[short])):
        assert "after" in said.err + said.out
        assert "decoded frames" in said.err + said.out
    assert regress.files() == before
    # What could not be judged did not change.
    text = report[1].read_text(encoding="utf-8")
    assert '<p class="lead unsure">1 of 1 drive could not be judged</p><p' in text
    assert "If intended" not in text


@pytest.mark.slow
def test_processes_give_the_bytes_that_this_one_gives(
    regress: Regress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_video: MakeVideo
) -> None:
    drives = [regress.video, make_video("other.mkv", frames=4)]
    regress.update("two", drives=drives)
    monkeypatch.setattr("tools.commands.on_drives.regress_drives._run_jobs", _run_jobs)
    said = regress(0, "--json", "--bit-exact", "--jobs", "2", drives=drives)
    for drive in said.json["drives"]:
        assert drive["identical"] is True
        assert drive["digest"] == drive["reference"]["digest"]
    assert not list(tmp_path.glob("modeld-regress-work-*"))


def test_moved_weights_are_caught_named_and_accepted(regress: Regress, tmp_path: Path) -> None:
    model, report = moved_lines(tmp_path / "moved.pkl", 1e-3), tmp_path / "out.html"
    said = regress(1, "--report", report, model=model).out
    assert re.search(r"modelV2\.laneLines\[\]\.y: value in 9 frames from 0 on", said)
    assert "input" not in said
    assert "1 of 1 drive changed. If intended, accept with `modeld regress ... --update" in said
    page = Page(report)
    assert "script" not in page.seen
    assert all(link.startswith(("data:", "#")) for link in page.links)
    # The field, the frame with both paths, a curve of the field, and both environments.
    for text in (
        *("modelV2.laneLines[].y", 'class="path-before"', 'class="before"'),
        *("Where both sides ran", "medians:"),
    ):
        assert text in page.text
    # The verdict, the frame with both paths and metres come before the fields, which are folded.
    order = ("1 of 1 drive changed.", "The path does not move", "<svg viewBox", TITLE, "<details>")
    places = [page.text.index(text) for text in order]
    assert places == sorted(places)
    assert page.text.index("modelV2.laneLines[].y: value") > places[-1]
    said = regress.update("wider lanes", model=model).out
    assert "accepted: weight vision_bias is not the reference's, and 2 more" in said
    (reference,) = ReferenceStore(regress.references).all()
    assert reference.provenance["reason"] == "wider lanes"
    assert reference.provenance["device"]
    regress(0, model=model)
    regress(1)


def test_a_change_within_the_tolerance_passes_but_is_not_bit_exact(
    regress: Regress, tmp_path: Path
) -> None:
    said = regress(1, model=moved_lines(tmp_path / "nearly.pkl", 2e-6)).out
    assert "1 change" in said
    assert "weight vision_bias is not the reference's" in said
    # Other kernels may want other bytes: then the outputs alone are judged.
    source = f"// compiled otherwise\n{tiny_driving.SOURCE}"
    model = moved_lines(tmp_path / "otherwise.pkl", 2e-6, SOURCE=source)
    assert "9 frames, within tolerance" in regress(0, model=model).out
    said = regress(1, "--bit-exact", model=model).out
    assert "modelV2: 9 of 9 messages differ in their bits, from message 0 on" in said
    assert "cameraOdometry" not in said


def test_a_tighter_table_of_tolerances_finds_nothing_in_what_did_not_change(
    regress: Regress, tmp_path: Path
) -> None:
    def coarse_rule_of(service: str, field: str) -> FieldRule:
        rule = rule_of(service, field)
        scale = Scale(1000.0 * rule.scale.absolute, 1000.0 * rule.scale.relative)
        return FieldRule(scale, rule.measured)

    (path,) = regress.references.iterdir()
    path.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regress_job, "rule_of", coarse_rule_of)
        regress.update("what was allowed once")
    assert "identical" in regress(0).out
    # What did change is seen as coarsely as it was written.
    regress(1, model=moved_lines(tmp_path / "moved.pkl", 0.5))


def test_a_changed_input_is_told_from_a_changed_program(
    regress: Regress, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, runs = DigestingProgram.run, []

    def swapped(self: DigestingProgram, inputs: Any, entry: str | None = None) -> Any:
        runs.append(entry)
        changed = dict(inputs)
        if len(runs) > 5:
            changed["wide_transform"] = np.asarray(inputs["wide_transform"]) * np.float32(2)
        return run(self, changed, entry)

    monkeypatch.setattr(DigestingProgram, "run", swapped)
    (drive,) = regress(1, "--json").json["drives"]
    assert [change["kind"] for change in drive["changes"]].count("input") == 1
    first = drive["changes"][0]
    assert first["kind"] == "input"
    assert "input wide_transform differs from frame" in first["text"]
    assert "the cause is before the program" in first["text"]
    assert drive["comparison"]["findings"]


def test_another_model_and_another_drive_are_named(
    regress: Regress, tmp_path: Path, make_video: MakeVideo
) -> None:
    def renamed(manifest: Any) -> None:
        for source in manifest["models"]:
            source["sha256"] = "1" * 64

    model = edited_manifest(tmp_path / "other.pkl", renamed)
    assert "found one with another model," in regress(4, model=model).out
    drives = [make_video(frames=5)]
    assert "another content of the drive," in regress(4, drives=drives).out


def test_a_drive_that_cannot_be_opened_does_not_stop_the_others(
    regress: Regress, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.mkv"
    damaged.write_bytes(b"no video" * 100)
    drives = [tmp_path / "gone.mkv", damaged, regress.video]
    found = regress(4, "--json", drives=drives).json["drives"]
    assert [drive["status"] for drive in found] == ["failed", "failed", "passed"]
    assert "gone.mkv" in found[0]["error"]
    regress.update("what ran", code=4, drives=drives)


def test_a_damaged_reference_is_an_error_and_the_others_are_judged(
    regress: Regress, make_video: MakeVideo
) -> None:
    drives = [regress.video, make_video("other.mkv", frames=4)]
    regress.update("another", drives=drives)
    (path,) = regress.references.glob("drive-mkv*")
    path.write_bytes(path.read_bytes()[:-1])
    said = regress(4, drives=drives).out
    assert "it is damaged: get it again" in said
    assert "passed  other.mkv" in said
    assert "1 of 2 drives could not be judged" in said


def test_references_that_are_not_written(
    regress: Regress, tmp_path: Path, make_video: MakeVideo
) -> None:
    with ReferenceStore(regress.references).lock():
        assert "found another run that writes here" in regress.update("x", code=1).err
        regress(0)  # reading needs no lock
    model = write_tiny_driving(tmp_path / "nan.pkl", SIZE, bad_frame=1)
    before = regress.files()
    said = regress.update("x", code=1, model=model, drives=[make_video("one.mkv", frames=1)])
    assert "such a drive is no reference" in said.out
    assert regress.files() == before


@pytest.mark.slow
def test_the_timing_gate_fails_for_a_slower_program_and_does_not_creep(
    regress: Regress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[StoredTiming | None] = []
    change = KernelChange(("k5",), ("k5",), ("/b/Conv",), 2.0, 32.0)
    launches = (LaunchTime("k5", ("/b/Conv",), 0.25),)

    def timed(ratio: float, code: int, *more: object) -> str:
        """Let the timing gate measure a ratio; return what is said of it."""

        def measure(what: Measurement, stored: StoredTiming | None, **_: Any) -> TimingResult:
            given.append(stored)
            assert what.entry == "run"
            assert what.frames is not None
            # Of the drive itself, with what the program was given.
            assert read_frames(what.frames)[0].name.endswith("frame 0")
            device = timed_device(choose_device().info)
            spread = Interval(ratio, 0.995 * ratio, 1.005 * ratio, (ratio,) * 4)
            frames = (FrameTiming("drive frame 0", spread, None),)
            kernels = Kernels("drive frame 0", (change,), launches)
            return TimingResult(
                device, "processor", spread, None, 25.0, 0.0, frames, kernels=kernels
            )

        monkeypatch.setattr(regress_run, "measure_timing", measure)
        return regress(code, *more, timing="").out

    said = timed(7.0, 0)
    assert "not judged  run  timing: no reference" in said
    assert "passed      drive.mkv" in said
    assert "1 drive passed; its speed was not judged" in said
    assert "timing.json: run: new" in timed(7.0, 0, "--update", "--reason", "times")
    stored = regress.files()
    page = tmp_path / "slower.html"
    said = timed(7.7, 1, "--explain", "--report", page)
    assert "+10.0%" in said
    named = "slower kernel: k5, nodes /b/Conv: 2.000 ms before, 32.000 ms now"
    assert f"why the speed of run changed:\n  {named}" in said
    assert f"\n         {named}" in said
    assert named in page.read_text()
    assert "the program is slower" in said
    # Within the limit: the gate is open, and the reference stays what it was.
    timed(7.2, 0, "--update", "--reason", "slower")
    assert regress.files() == stored
    said = timed(7.7, 0, "--update", "--reason", "a larger model")
    assert given[-1] is not None
    assert given[-1].ratio.mean == 7.0
    assert given[-1].frames["drive frame 0"] == given[-1].ratio
    assert given[-1].launches == launches
    assert "accepted: timing: +10.0%" in said
    timed(7.7, 0, "--report", tmp_path / "out.html")
    assert "7.700 times the calibration workload" in (tmp_path / "out.html").read_text()


FRAME = np.arange(6).astype(np.uint32)
TABLE = FrameTable(
    moment=np.arange(10, 16),
    frame_id=np.arange(10, 16),
    dropped=np.zeros(6, np.int64),
    published=np.ones(6, np.bool_),
    valid=np.ones(6, np.bool_),
    execution_s=np.zeros(6),
    input_crc={"desire": np.array([1, 1, 2, 1, 1, 1], np.uint32), "road_frame": FRAME},
)


def test_a_dropped_frame_is_named() -> None:
    keep = np.array([0, 1, 2, 4, 5])
    columns = ("moment", "frame_id", "published", "valid", "execution_s")
    now = FrameTable(
        **{name: getattr(TABLE, name)[keep] for name in columns},
        dropped=np.array([0, 0, 0, 1, 0]),
        input_crc={name: column[keep] for name, column in TABLE.input_crc.items()},
    )
    assert [change.text for change in frame_changes(TABLE, now)] == [
        "frame 13 was processed, and is not now",
        "frame 14: frames counted as missing before it: 0 before, 1 now",
    ]
    published = np.array([True, True, False, False, True, True])
    (change,) = frame_changes(TABLE, replace(TABLE, published=published))
    assert change.text == "frame 12: whether it was published: yes before, no now (2 frames)"


def test_a_strict_program_is_judged_by_its_bytes_on_every_cpu(
    regress: Regress, tmp_path: Path
) -> None:
    def made(name: str, metres: float, source: str = tiny_driving.SOURCE) -> Path:
        class Strict(tiny_driving._Builder):
            def manifest(self) -> dict[str, Any]:
                manifest = super().manifest()
                manifest["metadata"]["numerics"] = "strict"
                return manifest

        return moved_lines(tmp_path / name, metres, _Builder=Strict, SOURCE=source)

    regress.update("strict", model=made("strict.pkl", 0.0))
    (path,) = (p for p in regress.references.iterdir() if p.name.endswith(".strict.reference"))
    # Other kernels, of another row: only what they give counts.
    other = f"// compiled otherwise\n{tiny_driving.SOURCE}"
    said = regress(0, "--json", model=made("row.pkl", 0.0, other)).json
    assert said["model"]["device_class"] == "strict"
    # Within every tolerance, and yet other bytes.
    said = regress(1, "--json", model=made("nearly.pkl", 2e-6, other))
    assert changes(said) == [
        "bits: the program gives other bytes from frame 0 on (9 of 9 frames), with strict numerics"
    ]
    assert path.exists()


ROOT = Path(__file__).parents[3]


def test_a_fault_of_a_kernel_is_judged_by_its_gates(regress: Regress, tmp_path: Path) -> None:
    report = tmp_path / "out.html"
    # Plans bend by a tenth more.
    source = tiny_driving.SOURCE.replace("0.01f * counter[0]", "0.011f * counter[0]")
    assert source != tiny_driving.SOURCE
    faulty = edited_tiny(tmp_path / "faulty.pkl", SOURCE=source)
    # After 2 s at 15 m/s the mode bends by 0.02 * 30^2 / 100 m; it is the ninth frame, so that
    # 0.001 * 9 more of it are 1.62 mm.
    regress(1, model=faulty)
    within = ("--gates-only", "--gate", "lateral_2s_max_m < 0.01", "--report", report)
    history = ("--history", tmp_path / "history")
    said = regress(0, *within, *history, model=faulty).out
    assert "1 gate held, overriding" in said
    assert "effect on the drive:" in said
    text = report.read_text(encoding="utf-8")
    assert "meant: outputs" in text
    assert "<h3>Effect on the drive</h3>" in text
    assert "The path moves by at most 1.6 mm after 2 s (frame 8). The gate holds." in text
    (run, *_), damaged = read_history(tmp_path / "history")
    assert (run.command, damaged) == ("regress", [])
    assert run.figures["lateral_2s_max_m"] == pytest.approx(0.00162, rel=0.02)
    beyond = ("--gates-only", "--gate", "lateral_2s_max_m < 0.001")
    (drive,) = regress(1, *beyond, "--json", model=faulty).json["drives"]
    ((kind, change),) = [(change["kind"], change["text"]) for change in drive["changes"]]
    assert kind == "gate"
    assert change.startswith("gate failed: lateral_2s_max_m < 0.001: 0.0016")
    assert " (largest difference in frame 8)" in change
    assert {change["kind"] for change in drive["meant"]} == {"outputs"}
    rows = drive["comparison"]["behaviour"]["quantities"]
    (row,) = [row for row in rows if row["quantity"] == "lateral_2s"]
    assert row["spread"]["max"] == pytest.approx(0.00162, rel=0.02)


@pytest.mark.slow
def test_gates_do_not_stand_in_for_numbers_that_are_gone(regress: Regress, tmp_path: Path) -> None:
    bad = write_tiny_driving(tmp_path / "bad.pkl", SIZE, bad_frame=5)
    gates = ("--gates-only", "--gate", "lateral_2s_max_m < 10")
    (drive,) = regress(1, *gates, "--json", model=bad).json["drives"]
    texts = " ".join(change["text"] for change in drive["changes"])
    assert "whether it was valid: yes before, no now" in texts


@pytest.mark.slow
def test_fp16_of_a_compiled_model_on_a_rendered_drive(planted: Planted, modeld: Modeld) -> None:
    """Halves move every output beyond its tolerance, and the car by millimetres."""
    half = planted.artifact("half.pkl", precision="fp16")
    gates = planted.place / "half.gates"
    gates.write_text("lateral_*_max_m < 0.05  # metres\n*_edge_*_max_m < 0.1\n", encoding="utf-8")
    modeld(1, *planted.words(model=half))
    said = modeld(0, *planted.words("--gates-only", "--gates", gates, "--json", model=half))
    (drive,) = said.json["drives"]
    assert {change["kind"] for change in drive["meant"]} >= {"outputs"}
    rows = {row["quantity"]: row for row in drive["comparison"]["behaviour"]["quantities"]}
    assert rows["lateral_2s"]["spread"]["max"] > 0.0
    # The drive was rendered: both sides are compared with its truth, too.
    assert rows["lateral_2s"]["right_error"]["expected"] > 0
    assert rows["left_edge_10m"]["left_error"]["missed"] == 0
    assert rows["lateral_acceleration"]["spread"]["frames"] > 0


@pytest.mark.slow
def test_a_constant_of_one_kernel(planted: Planted, modeld: Modeld) -> None:
    """A mean over 512 values that is divided by 256: outputs stay plausible."""
    wrong = planted.place / "wrong.pkl"
    constants = ("0x1.0000000000000p-9f", "0x1.0000000000000p-8f")
    plant(planted.model, wrong, "/norm/LayerNormalization", constants)
    gates = ("--gates-only", "--gate", "lateral_*_max_m < 0.005")
    said = modeld(1, *planted.words(*gates, model=wrong)).out
    found = r"FAILS  lateral_\*_max_m < 0.005: \S+ \(lateral_4s_max_m\)"
    assert re.search(found, said)


def test_the_gates_of_the_example_models_can_be_read() -> None:
    gates = parse_gates([], ROOT / "tests/regression/fp16.gates", figure_names())
    assert len(gates) > 10
