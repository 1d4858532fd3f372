"""Files that somebody named: what is none is refused without being opened."""

import os
from pathlib import Path

import pytest

from runtime.errors import ArtifactError
from runtime.files.user_file import NotAFileError, open_given, read_given
from runtime.format.artifact import read_artifact


def test_what_is_no_file_is_neither_waited_for_nor_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, found in (
        (tmp_path / "pipe", "a FIFO"),
        (tmp_path, "a directory"),
        (Path("/dev/zero"), "a character device"),
    ):
        with pytest.raises(NotAFileError, match=f"expected an ordinary file, found {found}"):
            open_given(path)


def test_no_more_is_read_than_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_given(path, 5) == b"12345"
    with pytest.raises(OSError, match="expected at most 4 bytes, found 5"):
        read_given(path, 4)
    # It has no size, and yet content.
    with pytest.raises(OSError, match="expected at most 4 bytes, found 5"):
        read_given(Path("/proc/self/status"), 4)


def test_an_artifact_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.pkl")
    with pytest.raises(ArtifactError, match="found a FIFO"):
        read_artifact(tmp_path / "model.pkl")
