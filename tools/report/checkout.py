"""Names the commit of a git checkout, where there is one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

GIT_TIMEOUT_S: Final = 10.0


def commit_of(directory: Path) -> dict[str, str]:
    """Return commit and state of the checkout that a directory is in; empty where it is in none."""
    commit = ask_git(directory, "rev-parse", "HEAD")
    if not commit:
        return {}
    # A change that is not committed makes the commit's name a half-truth: say so.
    status = ask_git(directory, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "modified": "unknown" if status is None else str(bool(status))}


def ask_git(directory: Path, *arguments: str) -> str | None:
    """Return what git says, None where there is no git, no checkout, or no answer."""
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
