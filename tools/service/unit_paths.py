"""Finds paths in a systemd unit that its sandbox hides or that cannot be started.

``modeld install-unit`` warns about them. For example, ``ProtectHome=yes`` hides a program below
``/home``. For a script, its interpreter is checked, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

# Setting of a unit -> directories that systemd hides because of it.
HIDDEN = {
    "ProtectHome=yes": (Path("/home"), Path("/root"), Path("/run/user")),
    "PrivateTmp=yes": (Path("/tmp"), Path("/var/tmp")),  # noqa: S108 - none is written to
}
# The maximum number of interpreters followed, if a script's interpreter is itself a script.
MAX_STEPS = 8
_SHEBANG_BYTES = 256


def unit_warnings(
    command: Path, settings: str, places: Mapping[str, Path], *, is_here: bool
) -> Iterator[str]:
    """Yield one line for each path that a unit cannot start or see.

    Args:
        command: The program that the unit starts.
        settings: The lines of the unit.
        places: Directories that the unit reads, by option.
        is_here: The unit is for this machine, so the program itself is checked, too.
    """
    reason = hidden_by(command, settings)
    problem = f"the unit does not see it: {reason}" if reason else ""
    if is_here:
        problem = start_problem(command, settings)
    if problem:
        hint = "install it elsewhere, such as in /opt/modeld, or name it with --bin"
        yield f"ExecStart={command}: {problem}; {hint}"
    for option, path in places.items():
        if reason := hidden_by(path, settings):
            yield f"{option} {path}: the unit does not see it: {reason}; name another place"


def hidden_by(path: Path, settings: str) -> str:
    """Return why a unit cannot see a path, such as "ProtectHome=yes hides /home", or ""."""
    for setting, places in HIDDEN.items():
        for place in places:
            if setting in settings.splitlines() and path.is_relative_to(place):
                return f"{setting} hides {place}"
    return ""


def started_files(command: Path) -> Iterator[Path]:
    """Yield a program and the target of its links; if it is a script, also its interpreter's."""
    for _ in range(MAX_STEPS):
        yield command
        resolved = command.resolve()
        if resolved != command:
            yield resolved
        interpreter = _interpreter(resolved)
        if interpreter is None:
            return
        command = interpreter


def start_problem(command: Path, settings: str) -> str:
    """Return why a unit cannot start a program of this machine, as a phrase; "" if it can."""
    for path in started_files(command):
        what = "" if path == command else f" {path}, which it needs:"
        if reason := hidden_by(path, settings):
            return f"the unit does not see{what or ' it:'} {reason}"
        if not path.is_file():
            return f"expected a program,{what} found none"
        if not os.access(path, os.X_OK):
            return f"expected a program,{what} found a file that may not be run"
    return ""


def _interpreter(path: Path) -> Path | None:
    try:
        with path.open("rb") as file:
            line = file.read(_SHEBANG_BYTES).partition(b"\n")[0]
    except OSError:
        return None
    words = line.removeprefix(b"#!").split()
    return Path(os.fsdecode(words[0])) if line.startswith(b"#!") and words else None
