"""Stores the metrics of runs over a repository's commits, in a file with a JSON object per line.

`note_run` appends a run of ``modeld regress``, ``bench``, ``drive`` or ``compare``. Several
processes can append at the same time. `read_history` returns the runs for ``modeld history``; it
validates every line and reports damaged ones.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import re
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

from runtime.files.user_file import open_given
from tools.errors import UsageError
from tools.lib.json_output import json_text

# --- The commit of a git checkout -------------------------------------------------------------

GIT_TIMEOUT_S: Final = 10.0


def commit_of(directory: Path) -> dict[str, str]:
    """Return `commit` and `modified` of the checkout that contains a directory; {} without one."""
    commit = ask_git(directory, "rev-parse", "HEAD")
    if not commit:
        return {}
    # With uncommitted changes, the commit alone does not identify the code.
    status = ask_git(directory, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "modified": "unknown" if status is None else str(bool(status))}


def ask_git(directory: Path, *arguments: str) -> str | None:
    """Return the output of git; None if git is missing, fails or does not finish in time."""
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments, no shell
            ["git", "-C", str(directory), *arguments],  # noqa: S607 - the user's own git
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None


FILE_NAME: Final = "figures.jsonl"
FORMAT: Final = 1
# Ten years with one run per hour. A larger file is not a history.
MAX_BYTES: Final = 64 << 20
MAX_LINE_BYTES: Final = 64 << 10
MAX_FIGURES: Final = 400
MAX_TEXT: Final = 200
# The maximum number of damaged lines to report one by one.
MAX_DAMAGED: Final = 20
_TEXTS: Final = ("date", "commit", "command", "subject", "device", "model")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command."""

    date: str  # end of the run, ``2026-11-28T09:30:00Z``
    commit: str  # commit of the checkout in the current directory; "" without one
    modified: bool  # whether the checkout had uncommitted changes
    command: str  # ``bench``, ``compare``, ``drive`` or ``regress``
    subject: str  # description of the measured thing; only runs with equal ones are compared
    device: str  # name of the device; "" if it does not matter
    model: str  # digest of the artifact; "" without one
    figures: Mapping[str, float]  # finite metrics by name; names include units

    @property
    def name(self) -> str:
        """The abbreviated commit, with a star if the checkout was modified."""
        return f"{self.commit[:10] or 'no commit'}{'*' if self.modified else ''}"


def add_history(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare ``--history``."""
    parser.add_argument(
        "--history",
        type=Path,
        metavar="DIR",
        help="add this run's metrics to a history, see modeld history",
    )


def note_run(
    args: argparse.Namespace, *, subject: str, device: str, model: str, figures: Mapping[str, Any]
) -> None:
    """Append a run to the history if the option ``--history`` is given.

    `args` are the command's arguments. `subject`, `device` and `model` are fields of `Run`. Of
    `figures`, the finite numbers are stored.

    Raises:
        UsageError: the history cannot be written.
    """
    if args.history is None:
        return
    checkout = commit_of(Path.cwd())
    numbers = {
        name[:MAX_TEXT]: float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    run = Run(
        datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        checkout.get("commit", ""),
        checkout.get("modified", "False") != "False",
        args.command,
        subject[:MAX_TEXT],
        device.strip()[:MAX_TEXT],
        model[:MAX_TEXT],
        dict(list(numbers.items())[:MAX_FIGURES]),
    )
    append_run(args.history, run)


def append_run(directory: Path, run: Run) -> None:
    """Append a run in one write, under a lock; create the directory if it is missing.

    Raises:
        UsageError: the file cannot be written.
    """
    line = f"{json_text({'format': FORMAT, **asdict(run)})}\n".encode()
    path = directory / FILE_NAME
    try:
        directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path, flags, 0o666)
        try:
            _append(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UsageError(
            f"--history {path}: expected to append a line, found: {error.strerror or error}; free "
            "some disk space or name another directory"
        ) from error


def _append(descriptor: int, line: bytes) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(None, "no ordinary file")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    end = os.lseek(descriptor, 0, os.SEEK_END)
    # If another writer was killed inside its line, start a new line so that only that one is lost.
    is_torn = end > 0 and os.pread(descriptor, 1, end - 1) != b"\n"
    line = b"\n" * is_torn + line
    if end + len(line) > MAX_BYTES:
        raise OSError(None, f"a history of {MAX_BYTES >> 20} MiB")
    if os.write(descriptor, line) != len(line):
        os.ftruncate(descriptor, end)
        raise OSError(None, "no space left")


def read_history(directory: Path) -> tuple[list[Run], list[str]]:
    """Return the runs in the order they were added, and a text about each damaged line.

    Raises:
        UsageError: there is no history.
    """
    path = directory / FILE_NAME
    runs: list[Run] = []
    damaged: list[str] = []
    count = 0
    try:
        with open_given(path) as file:
            for number, line in enumerate(_lines(file), 1):
                try:
                    runs.append(_run_of(line))
                except (ValueError, RecursionError) as error:
                    count += 1
                    if count <= MAX_DAMAGED:
                        damaged.append(f"{path}:{number}: left out: {error}")
    except OSError as error:
        raise UsageError(
            f"{directory}: expected a history, found for {path.name}: {error.strerror or error}; "
            "modeld bench, compare, drive and regress write one with --history"
        ) from error
    if count > MAX_DAMAGED:
        damaged.append(f"{path}: {count - MAX_DAMAGED} more damaged lines are left out")
    return runs, damaged


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines; one that is too long is cut off."""
    left = MAX_BYTES
    while left > 0:
        line = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        left -= len(line)
        whole = line.endswith(b"\n")
        yield line
        while not whole and left > 0:
            rest = file.readline(MAX_LINE_BYTES)
            left -= len(rest)
            whole = not rest or rest.endswith(b"\n")


def _run_of(line: bytes) -> Run:
    """Return the run stored in a line; raise ValueError if the line is damaged."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"expected at most {MAX_LINE_BYTES >> 10} KiB, found more")
    if not line.endswith(b"\n"):
        raise ValueError("expected a whole line, found its beginning")
    try:
        found = json.loads(line)
    except ValueError:
        raise ValueError("expected a JSON object, found none") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, found a {type(found).__name__}")  # noqa: TRY004
    if found.get("format") != FORMAT:
        raise ValueError(f"expected format {FORMAT}, found {str(found.get('format'))[:20]!r}")
    texts = {name: found.get(name) for name in _TEXTS}
    for name, text in texts.items():
        if not isinstance(text, str) or len(text) > MAX_TEXT or not (text + " ").isprintable():
            raise ValueError(f"{name}: expected a text of at most {MAX_TEXT} characters")
    if not _DATE.fullmatch(str(texts["date"])):
        raise ValueError(f"date: expected 2026-11-28T09:30:00Z, found {texts['date']!r}")
    figures = found.get("figures")
    if not isinstance(figures, dict) or len(figures) > MAX_FIGURES:
        raise ValueError(f"figures: expected an object of at most {MAX_FIGURES} numbers")
    numbers = {name: _number(name, value) for name, value in figures.items()}
    whole = {name: str(text) for name, text in texts.items()}
    return Run(**whole, modified=bool(found.get("modified")), figures=numbers)


def _number(name: str, value: object) -> float:
    if len(name) > MAX_TEXT or not name.isprintable():
        raise ValueError(f"figures: expected names of at most {MAX_TEXT} characters")
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise ValueError(f"figures: {name}: expected a finite number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"figures: {name}: expected a finite number") from None
