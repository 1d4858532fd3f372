"""Outputs that would destroy something are refused before any work is done."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cereal.errors import LogError
from cereal.log_writer import LogWriter
from runtime.files.user_file import target_of, whole_file
from runtime.format.artifact import write_artifact
from scheduler.debug.viz import write_page
from scheduler.emit.artifact import emit
from scheduler.ir import dtype as dt
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor
from tests.cereal.shared import largest_file
from tests.runtime import tiny
from tests.tools.conftest import Modeld
from tests.tools.messages import event_of
from tools.commands import exec as exec_command
from tools.errors import UsageError
from tools.example_models import write_models
from tools.lib.named_file import check_outputs
from tools.timing.run_parts import write_trace


def test_new_and_existing_files_are_fine(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    check_outputs({"-o": tmp_path / "new", "--report": tmp_path / "old", "--trace": None}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none/x", "expected its directory to exist, found none; make it with: mkdir -p"),
        ("file/x", "expected its directory to exist"),
        ("directory", "expected an ordinary file, found a directory"),
        ("pipe", "expected an ordinary file, found a FIFO"),
        ("x" * 300, "cannot be written: File name too long"),
        ("file", "the same, which would be lost"),
        ("link", "the same, which would be lost"),
        ("directory/../other", "-o .*: expected another file than --report"),
    ],
)
def test_place_that_cannot_be_written_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    outputs = {"--report": tmp_path / "other", "-o": tmp_path / name}
    with pytest.raises(UsageError, match=message):
        check_outputs(outputs, {"input": [tmp_path / "missing", tmp_path / "file"]})


def test_empty_name_is_refused() -> None:
    with pytest.raises(UsageError, match="expected the name of a file"):
        check_outputs({"-o": Path()}, {})


def test_full_disk_names_the_file(tmp_path: Path, modeld: Modeld) -> None:
    source, output = tmp_path / "a.rlog", tmp_path / "a.jsonl"
    with LogWriter(source) as log:
        for stamp in range(2000):
            log.write(event_of("carState", stamp))
    words = ("inspect", source, "--dump", "--output", output)
    with largest_file(10_000):
        modeld.refused(1, f"{output}: File too large", *words)
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(UsageError, match="expected a directory that can be written"):
        check_outputs({"-o": tmp_path / "x"}, {})
    tmp_path.chmod(0o755)


def test_a_link_is_followed_to_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to(tmp_path / "there" / "new")
    assert target_of(tmp_path / "one") == tmp_path / "there" / "new"
    assert target_of("plain") == Path("plain")
    with whole_file(tmp_path / "one") as file:
        file.write(b"text")
    assert (tmp_path / "there" / "new").read_bytes() == b"text"
    assert (tmp_path / "one").readlink() == Path("two")
    assert (tmp_path / "there" / "new").stat().st_mode & 0o777 == 0o666 & ~umask()
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["new"]


def umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def test_a_file_that_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    with pytest.raises(TypeError), whole_file(tmp_path / "old") as file:
        file.writelines([b"new", 1])  # type: ignore[list-item] # it ends here
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


def test_a_name_as_long_as_the_file_system_takes(tmp_path: Path) -> None:
    with whole_file(tmp_path / ("x" * 255)) as file:
        file.write(b"text")
    assert (tmp_path / ("x" * 255)).read_bytes() == b"text"


REFUSED = r"expected an ordinary file|Too many levels"


# What an output may not be, behind a link of an innocent name. None of these is replaced or opened.
def links(directory: Path) -> dict[str, Path]:
    os.mkfifo(directory / "pipe")
    os.mknod(directory / "socket", stat.S_IFSOCK | 0o600)  # bind takes only short paths
    (directory / "directory").mkdir()
    (directory / "around").symlink_to("around")
    leads = {
        "pipe": directory / "pipe",
        "directory": directory / "directory",
        "socket": directory / "socket",
        "stdout": Path("/dev/stdout"),
        "descriptor": Path("/dev/fd/1"),
        "self": Path("/proc/self/fd/1"),
    }
    for name, target in leads.items():
        (directory / f"to-{name}").symlink_to(target)
    return {name: directory / f"to-{name}" for name in leads} | {"loop": directory / "around"}


def test_what_is_no_ordinary_file_is_refused_behind_links_too(tmp_path: Path) -> None:
    for name, link in links(tmp_path).items():
        before = link.readlink()
        with pytest.raises(UsageError, match=REFUSED):
            check_outputs({"-o": link}, {})
        with pytest.raises(OSError, match=REFUSED), whole_file(link):
            pytest.fail(name)
        with pytest.raises(LogError, match=REFUSED):
            LogWriter(link)
        assert link.readlink() == before
    assert Path("/dev/stdout").is_symlink()


def log_to(path: Path) -> None:
    with LogWriter(path) as log:
        log.write(event_of("carState"))


def page_to(path: Path) -> None:
    plan = schedule({"y": (Tensor.input("x", (4,), dt.float32) + 1).node})
    write_page(path, emit({"run": plan}, name="m", kind="plain").manifest)


def model_to(path: Path) -> None:
    (path.parent / "vision.onnx").symlink_to(path.readlink())
    write_models(path.parent, ("vision",), 0)


WRITERS: dict[str, Callable[[Path], object]] = {
    "artifact": lambda path: write_artifact(path, tiny.manifest(), tiny.data_blob()),
    "trace": lambda path: write_trace(path, {"traceEvents": []}),
    "arrays": lambda path: exec_command._write_arrays(path, {"y": np.ones(3)}),
    "log": log_to,
    "page": page_to,
    "model": model_to,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_follows_a_link(tmp_path: Path, writer: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "old").write_text("old")
    link = tmp_path / "link"
    link.symlink_to("there/old")
    WRITERS[writer](link)
    assert link.readlink() == Path("there/old")
    assert (tmp_path / "there" / "old").stat().st_size > len("old")
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["old"]


def test_dev_stdout_is_refused_where_it_is_a_file(tmp_path: Path) -> None:
    """With stdout redirected to a file, the link of the system leads to an ordinary file."""
    before = Path("/dev/stdout").readlink()
    (tmp_path / "in.npz").write_bytes(b"")
    words = ["exec", "a.pkl", "--inputs", str(tmp_path / "in.npz"), "--outputs", "/dev/stdout"]
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "tools.cli", *words],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "--outputs /dev/stdout: expected an ordinary file, found a stream" in done.stderr
    assert (tmp_path / "out").read_bytes() == b""
    assert Path("/dev/stdout").readlink() == before
