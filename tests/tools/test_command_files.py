"""No command replaces what it reads, or puts anything into it: one test over the whole table."""

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from modeld.service.config import SETTINGS
from tests.scheduler.onnx_import.tiny_models import model_of, value
from tests.tools.command_lines import PLACES, SIZES, TEXTS, named, options_of, outputs_of, words_of
from tests.tools.conftest import Modeld
from tools.cli import COMMANDS
from tools.command_files import COMMAND_FILES, attribute

LOG = "2023-07-27--13-01-19"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_that_may_name_a_file_is_in_the_table(command: str) -> None:
    known = named(command)
    for action in options_of(command):
        place = (command, action.dest)
        if action.choices is not None or action.type not in (None, Path) or place in SIZES:
            continue
        if action.dest.startswith("setting:") or place in PLACES or action.dest in known:
            continue
        is_text = action.type is None and action.dest in TEXTS
        option = (action.option_strings or [action.dest])[-1]
        assert is_text, (
            f"modeld {command} {option} has no row. If it names what is read: add {option!r}: ROLE "
            f"to reads of COMMAND_FILES[{command!r}] in tools/command_files.py, with a role from "
            "there. What is written: to files, a directory that gets files: to directories. No "
            "file at all: to TEXTS of tests/tools/command_lines.py, or to PLACES"
        )
    gone = known - {action.dest for action in options_of(command)}
    assert not gone, f"modeld {command} has no {gone}: remove it from COMMAND_FILES"


def test_every_setting_that_is_a_path_is_looked_at_by_run() -> None:
    paths = {key for key, setting in SETTINGS.items() if setting.kind is Path}
    assert paths == {
        *("model", "fallback_model", "models_dir", "params_dir"),
        *("metrics_file", "state_dir", "bus_keys"),
    }


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Path]:
    """A directory of inputs, which is where the command runs: nothing in it can be read."""
    files = [
        *("in", "seg/rlog.zst", "seg/fcamera.hevc", "seg/truth.npz", "kept/ecamera.hevc"),
        *("2k/video.hevc", "2k/processed_log/CAN/speed/t", "2k/global_pose/frame_times"),
        *(f"data/{LOG}--{number}/rlog.zst" for number in (0, 2)),
        *(f"flat/{LOG}--0--{name}" for name in ("rlog.zst", "fcamera.hevc")),
        *("x.frames.npz", "set/report.html", "set/summary.json"),
    ]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n", encoding="utf-8")
    (tmp_path / "seg/ecamera.hevc").symlink_to("../kept/ecamera.hevc")
    (tmp_path / "to-seg").symlink_to("seg")
    (tmp_path / "link").symlink_to("in")
    (tmp_path / "hard").hardlink_to(tmp_path / "in")
    weights = {"w": np.ones((64, 64), np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = model_of(nodes, [value("x", (1, 64))], [value("y", (1, 64))], weights)
    onnx.save(
        model,
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="weights",
        size_threshold=0,
    )
    with contextlib.chdir(tmp_path):
        yield tmp_path


def state(place: Path) -> dict[str, object]:
    """Everything below a directory: names, what links lead to, bytes."""
    return {
        str(path): path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in place.rglob("*")
    }


@pytest.mark.parametrize(
    ("command", "output"), [(name, output) for name in COMMANDS for output in outputs_of(name)]
)
def test_no_output_is_an_input_or_lies_inside_one(
    world: Path, modeld: Modeld, command: str, output: str
) -> None:
    """Every pair by one name; the first output and the first input by the other ways, too."""
    sources, before = [*COMMAND_FILES[command].reads], state(world)
    for source in sources:
        if source == output:
            continue
        is_first = output == outputs_of(command)[0] or source == sources[0]
        for read, written, text in (
            ("in", "in", "found the same, which would be lost"),
            ("seg", "seg/fcamera.hevc", "found the same, which would be lost"),
            ("seg", "seg/new", "expected a place outside the input"),
        )[: 3 if is_first else 1]:
            words = words_of(command, {attribute(source): read, attribute(output): written})
            said = modeld.refused(2, text, *words)
            assert f"{output} {written}: expected" in said.err
    assert state(world) == before


# Option, what is read, what is written; what the name of the input is, where it is another.
WAYS = [
    ("in", "in"),
    ("in", "link"),
    ("in", "hard"),
    ("in", "seg/../in"),
    ("in", "to-seg/../in"),
    ("link", "in"),
    ("seg", "to-seg/new"),
    ("seg", "to-seg/truth.npz"),
    ("seg", "kept/ecamera.hevc"),
    ("to-seg", "seg/new"),
    ("seg/rlog.zst", "seg/fcamera.hevc"),
    ("seg/rlog.zst", "seg/new"),
    (".", "new"),
    ("2k", "2k/processed_log/CAN/speed/t"),
    ("2k", "2k/processed_log/new"),
    (f"{LOG} --data-dir data", f"data/{LOG}--2/rlog.zst"),
    (f"{LOG}/0 --data-dir data", f"data/{LOG}--0/new"),
    (f"data/{LOG}/0:3", f"data/{LOG}--2/new"),
    ("data", "data/new"),
    (f"{LOG} --data-dir flat", f"flat/{LOG}--0--fcamera.hevc"),
    (f"flat/{LOG}--0--rlog.zst", f"flat/{LOG}--0--fcamera.hevc"),
]
REPLAY = "replay {read} --model pkl"
ROWS = [
    *((REPLAY + " -o {written}").format(read=r, written=w) for r, w in WAYS),
    *((REPLAY + " --live -o {written}").format(read=r, written=w) for r, w in WAYS[-2:]),
    "replay in kept/ecamera.hevc seg --model pkl -o seg",
    "replay in kept/ecamera.hevc seg --model a b -o seg/new",
    "replay in seg --model pkl -o set --report seg/new",
    "replay in seg --model pkl -o set --camera set/summary.json",
    "replay in seg --model pkl -o set --telemetry set/report.html",
    "replay in --model pkl -o x --telemetry x.frames.npz",
    "replay --model pkl in -o in",
    "compile m.onnx -o weights",
    "compile m.onnx -o new.pkl --viz weights",
    "inspect m.onnx --schedule --viz weights",
    "regress --model pkl --drives in seg --reference refs --report seg/ecamera.hevc",
    "train seg --eight-bits 0 --export seg/new",
    "demo --directory set --model set/report.html",
    *(
        f"run {written} {read}"
        for written in ("--metrics-file seg/new", "--state-dir seg/new")
        for read in ("--models-dir seg", "--params to-seg", "--model pkl --models-dir seg")
    ),
    *(f"run --metrics-file in {option} in" for option in ("--config", "--model")),
]


@pytest.mark.parametrize("words", ROWS)
def test_links_drives_and_what_is_beside_an_output(world: Path, modeld: Modeld, words: str) -> None:
    before = state(world)
    said = modeld.refused(2, "the input ", *shlex.split(words))
    assert "choose another" in said.err
    assert state(world) == before


def test_a_page_named_by_the_environment_is_an_output(
    world: Path, modeld: Modeld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIZ", str(world / "weights"))
    modeld.refused(2, "VIZ ", "compile", "m.onnx", "-o", "new.pkl")


@pytest.mark.parametrize(
    "words",
    [
        f"replay {LOG} --data-dir data --model pkl -o data/new",
        f"replay flat/{LOG}--0--rlog.zst --model pkl -o flat/new",
        "replay in --model pkl -o new",
        "regress --model pkl --drives in --reference refs --work set --report set/new",
    ],
)
def test_beside_inputs_there_is_room(world: Path, modeld: Modeld, words: str) -> None:
    del world
    modeld.refused(4, "expected", *shlex.split(words))
