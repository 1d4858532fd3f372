"""What somebody named is read once, whatever it has become meanwhile."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.errors import LabelsError
from tools.lib.given_data import GivenText

Read = Callable[[GivenText], object]


@pytest.mark.parametrize(
    ("make", "read", "said"),
    [
        (os.mkfifo, GivenText.text, "cannot be read: expected an ordinary file, found a FIFO"),
        (Path.mkdir, GivenText.text, "expected an ordinary file, found a directory"),
        (lambda path: path.symlink_to("/dev/zero"), GivenText.json, "found a character device"),
        (lambda path: path.write_bytes(b"1" * 201), GivenText.json, "expected at most 200 bytes"),
        (lambda path: path.write_bytes(b"\xff"), GivenText.toml, "expected UTF-8 text"),
        (lambda path: path.write_bytes(b"{"), GivenText.json, "expected JSON"),
        (lambda path: path.write_bytes(b"{"), GivenText.toml, "expected TOML"),
        (lambda _path: None, GivenText.text, "cannot be read: No such file"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    tmp_path: Path, make: Callable[[Path], object], read: Read, said: str
) -> None:
    path = tmp_path / "given"
    make(path)
    with pytest.raises(LabelsError) as caught:
        read(GivenText(path, LabelsError, 200, "--labels", "draw some"))
    text = str(caught.value)
    assert text.startswith(f"--labels {path}: ")
    assert said in text
    assert text.endswith("; draw some")
    assert "\n" not in text


def test_what_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "given"
    path.write_bytes(b"\xef\xbb\xbf" + b"a = 1")
    given = GivenText(path, LabelsError, 8)
    assert given.text() == "a = 1"
    assert given.toml() == {"a": 1}
