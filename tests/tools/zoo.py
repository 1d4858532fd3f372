"""A zoo of files that nobody means to give, and the commands that are fed with them.

    make_kinds(place)       a sound file of each kind
    make_zoo(place, kinds)  [Beast(name, what an error says of it), ...]
    feed(lines, place)      what came of each command line, each in a process of its own

A command line runs in a child of this process, with a limit of time and memory, in an empty
directory, and on request as a user who may read nothing that is not meant for everybody.
"""

import codecs
import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from backports import zstd
from onnx import helper

from tests.other_user import ROOT, STRANGER
from tests.scheduler.onnx_import.tiny_models import model_of, value
from tests.tools.conftest import write_video
from tests.tools.messages import event_of
from tests.tools.tiny_driving import write_tiny_driving
from tools.cli import COMMANDS, main
from tools.lib.named_file import NOUNS

KINDS = ("artifact", "onnx", "log", "video", "picture", "zip", "json", "text")

LIMIT_S = 20
# Beside what the process has mapped when it begins.
LIMIT_BYTES = 2 << 30


class Beast(NamedTuple):
    """One of the zoo.

    Attributes:
        name: what is typed.
        said: what an error says of it.
        kind: of `tools.lib.named_file.NOUNS`, for sound files; None for all others.
    """

    name: str
    said: str
    kind: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of a command line; `code` is negative for the signal that ended it."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str
    left: tuple[str, ...]

    def check(self, code: int, *said: str) -> str:
        """Return what is wrong with a refusal, "" where nothing is."""
        faults = []
        if self.code != code:
            hung = self.code == -signal.SIGALRM
            faults.append("it hung" if hung else f"exit code {self.code}, not {code}")
        lines = self.err.splitlines()
        if len(lines) != 1 or not self.err.startswith("modeld: error: "):
            faults.append(f"{len(lines)} lines on stderr")
        faults += [f"does not say {text!r}" for text in said if text not in self.err]
        if self.left:
            faults.append(f"left {', '.join(self.left)}")
        shown = " ".join(self.words)
        return f"modeld {shown}: {'; '.join(faults)}: {self.err[-300:]}" if faults else ""


def make_kinds(place: Path) -> None:
    """Write a sound file of each kind that a command reads, named by it, and `unknown`."""
    write_tiny_driving(place / "artifact", (192, 128))
    weights = {"w": np.ones((64, 64), np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = model_of(nodes, [value("x", (1, 64))], [value("y", (1, 64))], weights)
    onnx.save(model, place / "onnx")
    (place / "log").write_bytes(zstd.compress(event_of("carState", 5, vEgo=1.0) * 3))
    write_video(place / "drive.mkv").rename(place / "video")
    with (place / "zip").open("wb") as file:
        np.savez(file, x=np.zeros(3))
    noise = np.random.default_rng(1).bytes(3000)
    (place / "picture").write_bytes(b"\x89PNG\r\n\x1a\n" + noise)
    (place / "json").write_text('{"a": 1}\n', encoding="utf-8")
    (place / "text").write_text("a = 1\n", encoding="utf-8")
    (place / "unknown").write_bytes(b"\xfe\x01\xff" + noise)


def make_zoo(place: Path, kinds: Path) -> list[Beast]:
    """Fill a directory and return what is in it."""
    (place / "a-directory").mkdir()
    (place / "a-store").mkdir()
    if os.geteuid() == 0:  # only its owner may write to it, and root may everywhere
        os.chown(place / "a-store", STRANGER, STRANGER)
    (place / "dangling").symlink_to("nothing-is-here")
    (place / "loop").symlink_to("loop")
    os.mkfifo(place / "a-pipe")
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(place):
        made.bind("a-socket")
    (place / "empty").touch()
    (place / "closed").touch(0)
    with (place / "huge").open("wb") as file:
        file.write(b"a,b\n" * 4096)
        file.truncate(1 << 40)
    for sound in kinds.iterdir():
        content = sound.read_bytes()
        (place / f"a-{sound.name}").write_bytes(content)
        (place / f"cut-{sound.name}").write_bytes(content[: len(content) // 3])
    return [
        Beast("missing", "no such file"),
        Beast("missing/missing", "no such file"),
        Beast("x" * 300, "File name too long"),
        Beast("a-text/below", "Not a directory"),
        Beast("a-directory", "a directory"),
        Beast("empty", "an empty file"),
        Beast("/dev/zero", "a character device"),
        Beast("/dev/full", "a character device"),
        Beast("/dev/null", "a character device"),
        Beast("a-pipe", "a FIFO"),
        Beast("a-socket", "a socket"),
        Beast("dangling", "a link to nothing-is-here, which is not there"),
        Beast("loop", "Too many levels of symbolic links"),
        Beast("closed", "that you may not read"),
        Beast("huge", "1024.0 GiB, more than", "huge"),
        Beast("a-unknown", "data of an unknown kind (it begins with fe 01 ff", ""),
        *(Beast(f"a-{kind}", NOUNS[kind], kind) for kind in KINDS),
    ]


def feed(lines: Sequence[Sequence[str]], place: Path, *, stranger: bool = False) -> list[Outcome]:
    """Run command lines in a directory, and return what came of each.

    Args:
        lines: words behind ``modeld``; variables may stand before them, as in a shell.
        place: where relative names begin.
        stranger: as another user, if this one is root.
    """
    said = subprocess.run(
        [sys.executable, "-m", "tests.tools.zoo", str(place), str(int(stranger))],
        input=json.dumps([list(line) for line in lines]),
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60 + LIMIT_S * len(lines),
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    outcomes = [json.loads(line) for line in said.stdout.splitlines()]
    return [
        Outcome(tuple(one.pop("words")), left=tuple(one.pop("left")), **one) for one in outcomes
    ]


def _run(place: Path, *, stranger: bool) -> None:
    """Read command lines from stdin, and print what comes of each."""
    lines = json.load(sys.stdin)
    # Before the fork: once for all, and a stranger may not read them.
    codecs.lookup("utf-8-sig")
    commands = {next(word for word in line if "=" not in word) for line in lines}
    for module in ("tools.command_files", *(COMMANDS[one].module for one in commands)):
        importlib.import_module(module)
    os.chdir(place)
    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = mapped * resource.getpagesize() + LIMIT_BYTES
    before = set(Path().iterdir())
    for line in lines:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            code = _child(line, limit, out.fileno(), err.fileno(), stranger=stranger)
            out.seek(0)
            err.seek(0)
            texts = [file.read().decode(errors="replace") for file in (out, err)]
        left = sorted(set(Path().iterdir()) - before)
        for path in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        names = [str(path) for path in left]
        one = {"words": line, "code": code, "out": texts[0], "err": texts[1], "left": names}
        sys.stdout.write(f"{json.dumps(one)}\n")


def _child(line: list[str], limit: int, out: int, err: int, *, stranger: bool) -> int:
    """Fork, run a command line, and return its exit code, or the signal that ended it, negative."""
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        with contextlib.suppress(ProcessLookupError):  # what it started
            os.killpg(child, signal.SIGKILL)
        return os.waitstatus_to_exitcode(status)
    try:
        os.setsid()
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if stranger and os.geteuid() == 0:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
        signal.alarm(LIMIT_S)  # nobody handles it: it ends the process
        while "=" in line[0]:
            name, _, text = line.pop(0).partition("=")
            os.environ[name] = text
        code = main(line)
        sys.stderr.flush()
        os._exit(code)
    finally:
        os._exit(99)


if __name__ == "__main__":
    _run(Path(sys.argv[1]), stranger=sys.argv[2] == "1")
