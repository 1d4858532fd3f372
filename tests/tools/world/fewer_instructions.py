"""Runs code as on a processor with fewer instructions, in a process of its own."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]


def printed(code: str, *, fewer: bool) -> str:
    """Return what code prints.

    Args:
        code: of a script.
        fewer: without all instructions that numpy can do without.
    """
    # Not public and without types, but the only list of what can be disabled.
    umath = importlib.import_module("numpy._core._multiarray_umath")
    disabled = " ".join(umath.__cpu_dispatch__) if fewer else ""
    # numpy warns of what the processor does not have anyway.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=_ROOT,
        env={**os.environ, "NPY_DISABLE_CPU_FEATURES": disabled},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
