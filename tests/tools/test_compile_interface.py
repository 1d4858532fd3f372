"""`modeld compile` tells what its files are: driving, driver monitoring, a half, or another."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from runtime.format.artifact import read_artifact
from runtime.format.interfaces import parse_interface
from tests.scheduler.driving.edited_models import parts_of, proto_of
from tests.scheduler.onnx_import.tiny_models import mixer
from tests.tools.conftest import Modeld, Said

Compile = Callable[..., Said]
Refuse = Callable[..., str]
PADDED_4K = 3840 * (2176 + 1080)  # bytes of NV12


@pytest.fixture
def compiled(tmp_path: Path, modeld: Modeld) -> Compile:
    options = ("-o", tmp_path / "out.pkl", "--no-binary", "--json")
    return lambda *words: modeld(0, "compile", *words, *options)


@pytest.fixture
def refused(tmp_path: Path, modeld: Modeld) -> Refuse:
    """Compile what cannot be, and return the one line that says so."""

    def refuse(code: int, text: str, *words: object) -> str:
        out = tmp_path / "out.pkl"
        said = modeld.refused(code, text, "compile", *words, "-o", out, "--no-binary")
        assert not out.exists()
        return said.err

    return refuse


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
    files: dict[str, Path], tmp_path: Path, compiled: Compile
) -> None:
    for name in ("split-2025", "supercombo-2026", "on-off-2026"):
        paths = [path for key, path in files.items() if key.startswith(name)]
        bytes_seen = set()
        for order in (paths, paths[::-1]):
            assert compiled(*order).json["interface"] == name
            bytes_seen.add((tmp_path / "out.pkl").read_bytes())
        assert len(bytes_seen) == 1
        manifest = read_artifact(tmp_path / "out.pkl").manifest
        assert manifest.kind == "driving"
        assert parse_interface(manifest.metadata["interface"]).name == name


@pytest.mark.slow
def test_an_interface_is_assumed_with_a_note_and_declared_without(
    files: dict[str, Path], compiled: Compile
) -> None:
    pair = [files["split-2025/vision"], files["split-2025/policy"]]
    said = compiled(*pair)
    (note,) = said.json["notes"]
    assert note.startswith("interface: assumed split-2025, the preferred one")
    assert "split-2025-11 would also fit; declare another with --interface NAME" in note
    assert f"note: {note}" in said.err.splitlines()
    said = compiled(*pair, "--interface", "split-2025-11")
    assert (said.json["interface"], said.json["notes"]) == ("split-2025-11", [])
    assert "note: " not in said.err


@pytest.mark.slow
def test_a_camera_only_raises_the_capacity(
    files: dict[str, Path], tmp_path: Path, compiled: Compile
) -> None:
    sizes = []
    for camera in ([], ["--camera", "640x480"], ["--camera", "4096x3072"]):
        compiled(files["supercombo-2026/supercombo"], *camera)
        manifest = read_artifact(tmp_path / "out.pkl").manifest
        (run,) = (entry for entry in manifest.entries if entry.name == "run")
        frame = next(b for b in map(manifest.buffers.__getitem__, run.inputs) if "frame" in b.name)
        sizes.append(frame.shape[0])
    assert sizes[0] == sizes[1] == PADDED_4K
    assert sizes[2] > PADDED_4K


def test_a_half_alone_is_a_plain_model_with_a_note(
    files: dict[str, Path], tmp_path: Path, compiled: Compile
) -> None:
    said = compiled(files["split-2025/policy"])
    assert said.json["interface"] is None
    note = "is the policy half of a driving model, compiled by itself (as with --plain)"
    assert note in said.err
    assert "note: " not in compiled(files["split-2025/policy"], "--plain").err
    assert read_artifact(tmp_path / "out.pkl").manifest.kind == "plain"
    supercombo = compiled(files["supercombo-2026/supercombo"], "--plain")
    assert supercombo.json["interface"] is None


def test_driver_monitoring_is_told_by_its_inputs(
    tmp_path: Path, compiled: Compile, refused: Refuse
) -> None:
    path = tmp_path / "dm.onnx"
    onnx.save(mixer({"input_img": (1, 1382400), "calib": (1, 3)}, 596), path)
    assert compiled(path).json["interface"] == "dmonitoring-2025"
    assert read_artifact(tmp_path / "out.pkl").manifest.kind == "monitoring"
    (tmp_path / "out.pkl").unlink()
    text = "interface split-2025 declared by --interface is of driving models"
    refused(4, text, path, "--interface", "split-2025")


VISION, COMBO = "split-2025/vision", "supercombo-2026/supercombo"


@pytest.mark.parametrize(
    ("code", "words", "message"),
    [
        (4, [VISION, "--interface", "split-2025"], "expected also the policy model wit"),
        (2, [VISION, "--plain", "--interface", "split-2025"], "--interface needs a whole"),
        (2, [VISION, "--camera", "64x64"], "--camera needs a whole driving or driver"),
        (2, [COMBO, "--bind", "n=1"], "need a plain model (--plain)"),
        (4, [COMBO, "split-2025/policy"], "a supercombo, which is complete"),
        (4, [COMBO, "--interface", "supercombo-2062"], "did you mean supercom"),
        (2, [VISION, COMBO, "--plain"], "exactly one model, fo"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_what_cannot_be_compiled_together_is_one_line(
    files: dict[str, Path], refused: Refuse, code: int, words: list[str], message: str
) -> None:
    refused(code, message, *(files.get(word, word) for word in words))


def test_a_pair_that_the_daemon_cannot_use_is_refused_when_compiling(
    files: dict[str, Path], refused: Refuse
) -> None:
    parts = parts_of("split-2025")
    policy = proto_of(parts["policy"], slices={"plan": (0, 100)})
    vision = proto_of(parts["vision"], slices={"lane_lines": None, "pose": None})
    pair = [files["split-2025/vision"], files["split-2025/policy"]]
    for path, proto in zip(pair, (vision, policy), strict=True):
        onnx.save(proto, path)
    line = refused(4, "recognized as split-2025 (", *pair)
    for problem in (
        "head plan: expected 990 or 4955 values, found 100",
        "head lane_lines: expected 528 values, is missing",
        "head pose: expected 12 values, is missing",
    ):
        assert problem in line


def test_notes_say_where_a_model_came_from_and_change_no_program(
    tmp_path: Path, compiled: Compile
) -> None:
    path, proto = tmp_path / "m.onnx", mixer({"x": (1, 8)}, 4)
    proto.producer_name, proto.producer_version = "an exporter", "2.3"
    onnx.helper.set_model_props(proto, {"trained_on": "drives", "a": "x" * 999})
    onnx.save(proto, path)
    plain = compiled(path, "--plain").json
    said = compiled(path, "--plain", "--note", "commit=1a2b3c", "--note", "data=a = b").json
    artifact = read_artifact(tmp_path / "out.pkl")
    digest = hashlib.sha256(b"x" * 999).hexdigest()[:16]
    from_file = {
        "model.a": f"(999 characters, sha256 {digest})",
        "model.producer": "an exporter 2.3",
        "model.trained_on": "drives",
    }
    assert plain["lineage"] == from_file
    assert said["lineage"] == {"commit": "1a2b3c", "data": "a = b", **from_file}
    assert artifact.manifest.lineage == said["lineage"]
    assert (artifact.sha256, artifact.program_sha256) == (said["sha256"], said["program_sha256"])
    assert said["program_sha256"] == plain["program_sha256"]
    assert said["sha256"] != plain["sha256"]


@pytest.mark.parametrize(
    ("notes", "text"),
    [
        (["commit"], "--note commit: expected NAME=VALUE, such as commit=1a2b3c"),
        (["=x"], "--note =x: expected a name of 1 to 96 printable characters, found ''"),
        (["a=1", "a=2"], "--note a=2: a is given already, as 1"),
        (["a=b\nc"], "--note a=b?c: expected at most 200 printable characters"),
        (["a=" + "x" * 201], "expected at most 200 printable characters"),
        ([f"n{n}=1" for n in range(65)], "--note: expected at most 64, found 65"),
    ],
    ids=["no value", "no name", "twice", "two lines", "long", "many"],
)
def test_notes_that_cannot_be_kept_are_refused_before_anything_is_compiled(
    notes: list[str], text: str, refused: Refuse, tmp_path: Path
) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"\x08\x08\x12\x00, as a model begins")
    refused(2, text, "--plain", model, *(word for note in notes for word in ("--note", note)))
