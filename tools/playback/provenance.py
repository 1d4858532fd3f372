"""Records what a finished log was made from: ``<log>.json``, written last.

A log whose provenance agrees with what is asked for is kept; one without was not finished.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from runtime.files.user_file import whole_file
from tools.drives.drive import DriveInfo
from tools.errors import UsageError
from tools.lib.json_output import json_text
from tools.playback.frame_table import frames_path
from tools.playback.outcome import Outcome

# Counts in what must agree: changes whenever the same inputs give another log.
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that decides the bytes of a log."""

    drive: str  # identity of the drive, which holds its options
    artifact: str  # sha256 of the artifact
    device: str  # name and driver of the device
    limit: int | None  # moments that are played; None: all
    raw_predictions: bool  # the raw vectors are in the messages
    monitoring: str | None = None  # of that of driver monitoring beside it; None: there is none

    def as_json(self) -> dict[str, Any]:
        """Return what is compared, as plain values."""
        # A log without monitoring is what it was before there was any.
        beside = {} if self.monitoring is None else {"monitoring": self.monitoring}
        return beside | {
            "format": FORMAT,
            "version": _version(),
            "drive": self.drive,
            "artifact": self.artifact,
            "device": self.device,
            "limit": self.limit,
            "raw_predictions": self.raw_predictions,
        }


def provenance_path(log: Path) -> Path:
    """Return where the provenance of a log lies."""
    return log.with_name(log.name + ".json")


def is_finished(log: Path, asked: Asked) -> bool:
    """Tell whether a log is there in full and was made from what is asked for."""
    try:
        found = json.loads(provenance_path(log).read_text(encoding="utf-8"))
        whole = log.stat().st_size == found["log_bytes"]
        return whole and found["made_from"] == asked.as_json() and frames_path(log).is_file()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def remove_outcome(log: Path) -> None:
    """Remove a log and what lies beside it, the provenance first."""
    for path in (provenance_path(log), frames_path(log), log):
        path.unlink(missing_ok=True)


def write_provenance(asked: Asked, info: DriveInfo, model: Path, outcome: Outcome) -> None:
    """Say that a log is finished, and what it was made from.

    Raises:
        UsageError: it cannot be written.
    """
    path = provenance_path(outcome.log)
    content = {
        "made_from": asked.as_json(),
        "log_bytes": outcome.log.stat().st_size,
        "drive": {"name": info.name, "kind": info.kind, "facts": dict(info.facts)},
        "model": model.name,
        "artifact_bytes": model.stat().st_size,
        "frames": int(outcome.frames.frame_id.size),
        "wall_s": round(outcome.wall_s, 3),
        "peak_rss_bytes": outcome.peak_rss_bytes,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    try:
        with whole_file(path) as file:
            file.write(json_text(content).encode() + b"\n")
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror or error}); free some disk space"
        ) from error


def _version() -> str:
    try:
        return metadata.version("modeld")
    except metadata.PackageNotFoundError:
        return "unknown"
