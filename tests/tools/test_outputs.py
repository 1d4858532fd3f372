"""Outputs that would destroy something are refused before any work is done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools import cli
from tools.errors import UsageError
from tools.lib.outputs import check_outputs


def test_new_and_existing_files_are_fine(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    check_outputs({"-o": tmp_path / "new", "--report": tmp_path / "old", "--trace": None}, [None])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none/x", "expected its directory to exist, found none; make it with: mkdir -p"),
        ("file/x", "expected its directory to exist"),
        ("directory", "expected an ordinary file, found a directory"),
        ("pipe", "expected an ordinary file, found a device, pipe or socket"),
        ("x" * 300, "cannot be written: File name too long"),
    ],
)
def test_place_that_cannot_be_written_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=message):
        check_outputs({"-o": tmp_path / name})


def test_empty_name_is_refused() -> None:
    with pytest.raises(UsageError, match="expected the name of a file"):
        check_outputs({"-o": Path()})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(UsageError, match="expected a directory that can be written"):
        check_outputs({"-o": tmp_path / "x"})
    tmp_path.chmod(0o755)


def test_output_that_is_an_input_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.write_text("model")
    (tmp_path / "link").symlink_to(model)
    for name in ("model", "link"):
        with pytest.raises(UsageError, match="the same, which would be lost"):
            check_outputs({"-o": tmp_path / name}, [tmp_path / "missing", model])


def test_two_outputs_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(UsageError, match=r"--report .*: expected another file than --output"):
        check_outputs({"--output": tmp_path / "x", "--report": tmp_path / "d" / ".." / "x"})


@pytest.mark.parametrize(
    "arguments",
    [
        ["compile", "F", "-o", "F"],
        ["exec", "F", "--inputs", "G", "--outputs", "F"],
        ["exec", "G", "--inputs", "F", "--outputs", "F"],
        ["bench", "F", "--trace", "F"],
        ["replay", "F", "--model", "G", "-o", "F"],
        ["replay", "G", "--model", "F", "-o", "F"],
        ["replay", "G", "--model", "G", "-o", "H", "--report", "F", "--telemetry", "F"],
    ],
    ids=lambda arguments: "-".join(arguments[:1] + arguments[-2:]),
)
def test_no_command_overwrites_its_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    precious = tmp_path / "F"
    precious.write_text("precious")
    (tmp_path / "G").write_text("other")
    places = [str(tmp_path / a) if a in ("F", "G", "H") else a for a in arguments]
    assert cli.main(places) == 2
    assert "which would be lost" in capsys.readouterr().err
    assert precious.read_text(encoding="utf-8") == "precious"
