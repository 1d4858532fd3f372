"""`modeld compile` tells what its files are: driving, driver monitoring, a half, or another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from runtime.artifact import read_artifact
from runtime.driving_interface import parse_interface
from tests.scheduler.driving.edited_models import parts_of, proto_of
from tests.scheduler.onnx_import.tiny_models import mixer
from tools import cli

PADDED_4K = 3840 * (2176 + 1080)  # bytes of NV12
Capture = pytest.CaptureFixture[str]


def compiled(capsys: Capture, folder: Path, *words: object) -> tuple[dict[str, Any], str]:
    """Return the report and the errors of a compile to `out.pkl`."""
    out = ["-o", folder / "out.pkl", "--no-binary", "--json"]
    code = cli.main(["compile", *map(str, [*words, *out])])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    report: dict[str, Any] = json.loads(captured.out)
    return report, captured.err


def refused(capsys: Capture, folder: Path, *words: object) -> str:
    """Return the one line that refuses."""
    code = cli.main(["compile", *map(str, [*words, "-o", folder / "out.pkl", "--no-binary"])])
    assert code in (2, 4)
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("modeld: error: ")
    assert not (folder / "out.pkl").exists()
    return line


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    found = {}
    for name in ("split-2025", "supercombo-2026", "on-off-2026"):
        for role, part in parts_of(name).items():
            found[f"{name}/{role}"] = tmp_path / f"{name}-{role}.onnx"
            onnx.save(proto_of(part), found[f"{name}/{role}"])
    return found


@pytest.mark.slow
def test_one_to_three_files_in_any_order(
    files: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    for name in ("split-2025", "supercombo-2026", "on-off-2026"):
        paths = [path for key, path in files.items() if key.startswith(name)]
        bytes_seen = set()
        for order in (paths, paths[::-1]):
            report, _ = compiled(capsys, tmp_path, *order)
            assert report["interface"] == name
            bytes_seen.add((tmp_path / "out.pkl").read_bytes())
        assert len(bytes_seen) == 1
        manifest = read_artifact(tmp_path / "out.pkl").manifest
        assert manifest.kind == "driving"
        assert parse_interface(manifest.metadata["interface"]).name == name


@pytest.mark.slow
def test_an_interface_is_assumed_with_a_note_and_declared_without(
    files: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    pair = [files["split-2025/vision"], files["split-2025/policy"]]
    report, errors = compiled(capsys, tmp_path, *pair)
    (note,) = report["notes"]
    assert note.startswith("interface: assumed split-2025, the preferred one")
    assert "split-2025-11 would fit, too; declare another with --interface NAME" in note
    assert f"note: {note}" in errors.splitlines()
    report, errors = compiled(capsys, tmp_path, *pair, "--interface", "split-2025-11")
    assert (report["interface"], report["notes"]) == ("split-2025-11", [])
    assert "note: " not in errors


@pytest.mark.slow
def test_a_camera_only_raises_the_capacity(
    files: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    sizes = []
    for camera in ([], ["--camera", "640x480"], ["--camera", "4096x3072"]):
        compiled(capsys, tmp_path, files["supercombo-2026/supercombo"], *camera)
        manifest = read_artifact(tmp_path / "out.pkl").manifest
        (run,) = (entry for entry in manifest.entries if entry.name == "run")
        frame = next(b for b in map(manifest.buffers.__getitem__, run.inputs) if "frame" in b.name)
        sizes.append(frame.shape[0])
    assert sizes[0] == sizes[1] == PADDED_4K
    assert sizes[2] > PADDED_4K


def test_a_half_alone_is_a_plain_model_with_a_note(
    files: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    report, errors = compiled(capsys, tmp_path, files["split-2025/policy"])
    assert report["interface"] is None
    assert "is the policy half of a driving model, compiled by itself (as with --plain)" in errors
    _, errors = compiled(capsys, tmp_path, files["split-2025/policy"], "--plain")
    assert "note: " not in errors
    assert read_artifact(tmp_path / "out.pkl").manifest.kind == "plain"


def test_a_supercombo_can_be_compiled_plain(
    files: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    report, _ = compiled(capsys, tmp_path, files["supercombo-2026/supercombo"], "--plain")
    assert report["interface"] is None


def test_driver_monitoring_is_told_by_its_inputs(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "dm.onnx"
    onnx.save(mixer({"input_img": (1, 1382400), "calib": (1, 3)}, 596), path)
    report, _ = compiled(capsys, tmp_path, path)
    assert report["interface"] == "dmonitoring-2025"
    assert read_artifact(tmp_path / "out.pkl").manifest.kind == "monitoring"
    (tmp_path / "out.pkl").unlink()
    line = refused(capsys, tmp_path, path, "--interface", "split-2025")
    assert "interface split-2025 declared by --interface is of driving models" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["split-2025/vision", "--interface", "split-2025"], "expected also the policy model wit"),
        (
            ["split-2025/vision", "--plain", "--interface", "split-2025"],
            "--interface needs a whole",
        ),
        (["split-2025/vision", "--camera", "64x64"], "--camera needs a whole driving or driver"),
        (["supercombo-2026/supercombo", "--bind", "n=1"], "need a plain model (--plain)"),
        (["supercombo-2026/supercombo", "split-2025/policy"], "a supercombo, which has no second"),
        (["supercombo-2026/supercombo", "--interface", "supercombo-2062"], "did you mean supercom"),
        (["split-2025/vision", "supercombo-2026/supercombo", "--plain"], "exactly one model, fo"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_what_cannot_be_compiled_together_is_one_line(
    files: dict[str, Path], tmp_path: Path, capsys: Capture, words: list[str], message: str
) -> None:
    assert message in refused(capsys, tmp_path, *(files.get(word, word) for word in words))


def test_a_pair_that_the_daemon_cannot_use_is_refused_when_compiling(
    files: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    part = parts_of("split-2025")["policy"]
    onnx.save(proto_of(part, slices={"plan": (0, 100)}), files["split-2025/policy"])
    vision = parts_of("split-2025")["vision"]
    bare = proto_of(vision, slices={"lane_lines": None, "pose": None})
    onnx.save(bare, files["split-2025/vision"])
    line = refused(capsys, tmp_path, files["split-2025/vision"], files["split-2025/policy"])
    for part_of_line in (
        "taken for split-2025 (",
        "head plan: expected 990 or 4955 values, found 100",
        "head lane_lines: expected 528 values, is missing",
        "head pose: expected 12 values, is missing",
    ):
        assert part_of_line in line
