"""Times of launches from a file that `modeld bench ARTIFACT --profile --json` printed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from scheduler.debug.viz import LaunchTimes
from tools.errors import FileKindError
from tools.lib.given_text import GivenText

# A launch is some 300 bytes; no entry has more than some thousands.
MAX_BYTES: Final = 64 << 20
_ADVICE: Final = "make it with: modeld bench ARTIFACT --profile --json > FILE"


def load_times(path: Path, manifest: Mapping[str, Any]) -> dict[str, LaunchTimes]:
    """Return the times of the entry that was measured, by its name.

    Args:
        path: of the file.
        manifest: of the artifact, whose kernels have to be the ones that were measured.

    Raises:
        FileKindError: the file cannot be read, holds no times, or those of other kernels.
    """
    found = _read(path)
    entry, rows = found.get("entry"), found.get("per_kernel")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FileKindError(f"--times {path}: expected times by kernel, found none; {_ADVICE}")
    if entry not in manifest["entries"]:
        names = ", ".join(manifest["entries"])
        raise FileKindError(f"--times {path}: expected an entry of {names}, found {entry!r}")
    kernels = [manifest["kernels"][at]["name"] for at in manifest["entries"][entry]["launches"]]
    measured = [row.get("name") for row in rows]
    if measured != kernels:
        raise FileKindError(
            f"--times {path}: expected the {len(kernels)} launches of {manifest['name']}, found "
            f"{len(measured)} of other kernels; measure this artifact"
        )
    times = [row.get("median_ms") for row in rows]
    if not all(isinstance(ms, int | float) and math.isfinite(ms) and ms >= 0 for ms in times):
        raise FileKindError(f"--times {path}: expected median_ms of each launch; {_ADVICE}")
    device = found.get("device")
    where = device if isinstance(device, str) and device else "a device without a name"
    return {str(entry): LaunchTimes(tuple(map(float, times)), where)}


def _read(path: Path) -> dict[str, Any]:
    found = GivenText(path, FileKindError, MAX_BYTES, "--times", _ADVICE).json()
    if not isinstance(found, dict):
        raise FileKindError(f"--times {path}: expected one JSON object; {_ADVICE}")
    return found
