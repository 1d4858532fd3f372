"""Several drives, several models: one log for each pair, kept when it is finished.

In the output directory a pair's log is ``MODEL/DRIVE.rlog.zst``, with its frame table and its
pictures beside it. The provenance, ``<log>.json``, is written last: it records what the log was
made from. A log whose provenance agrees with what is asked for is kept; one without was not
finished. A drive that cannot be read does not keep the others from being done.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

from cereal.errors import CerealError
from modeld.daemon import StepResult
from modeld.errors import ModeldError
from runtime.files.user_file import whole_file
from tools.drives.drive import DriveInfo, Moment
from tools.drives.open_drive import DriveOptions, expand_drives, open_drive
from tools.errors import ToolError, UsageError
from tools.lib.json_output import json_text
from tools.playback.model import LoadedModel, check_fits
from tools.playback.outcome import Outcome, frames_path
from tools.playback.pictures import FramePictures, load_pictures, pictures_path, save_pictures
from tools.playback.result import DriveResult, read_result
from tools.playback.run_drive import OnMoment, PlaybackOptions, run_drive
from tools.report.report import MAX_PICTURES

# Part of the provenance: it changes whenever the same inputs give another log.
PROVENANCE_FORMAT = 1
# What a single drive may fail with while the others go on. A device that fails, a full disk and an
# interrupt are not among them: they would fail the next drive, too.
DRIVE_ERRORS = (ToolError, ModeldError, CerealError)
DriveFailure = ToolError | ModeldError | CerealError


@dataclass(frozen=True, slots=True)
class Planned:
    """A drive that could be opened."""

    text: str  # what opens it
    info: DriveInfo  # what is known of it
    name: str


@dataclass(slots=True)
class Plan:
    """What is to be played."""

    # Those that could be opened, in the order asked for.
    drives: list[Planned] = field(default_factory=list)
    # One line for each thing that went wrong so far.
    errors: list[DriveFailure] = field(default_factory=list)


def plan_drives(texts: Sequence[str], options: DriveOptions) -> Plan:
    """Open every drive once, to know its name, its length and what it is made of."""
    plan = Plan()
    for text in texts:
        try:
            expanded = expand_drives([text], options)
        except DRIVE_ERRORS as error:
            plan.errors.append(error)
            continue
        for one in expanded:
            try:
                drive = open_drive(one, options)
                drive.close()
            except DRIVE_ERRORS as error:
                plan.errors.append(error)
            else:
                plan.drives.append(Planned(one, drive.info, file_name(drive.info.name)))
    names = [planned.name for planned in plan.drives]
    plan.drives = [
        replace(one, name=f"{one.name}-{one.info.identity[:8]}")
        if names.count(one.name) > 1
        else one
        for one in plan.drives
    ]
    return plan


def file_name(name: str) -> str:
    """Return a name of a drive or a model as the name of a file, without separators."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip(".")[:100] or "_"


def model_names(models: Sequence[LoadedModel]) -> list[str]:
    """Return the name of each model's directory: the artifact's, told apart where it repeats."""
    stems = [file_name(model.path.stem) for model in models]
    return [
        f"{stem}-{model.artifact.sha256[:8]}" if stems.count(stem) > 1 else stem
        for stem, model in zip(stems, models, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Batch:
    """What all pairs have in common."""

    directory: Path  # of the output; exists
    models: Sequence[LoadedModel]
    drive_options: DriveOptions  # how drives are opened
    limit: int | None = None  # moments that are played of each drive; None: all
    fresh: bool = False  # nothing is kept
    on_moment: OnMoment | None = None  # called after each moment that is played
    # Called with the number of moments of a pair that is not played.
    on_kept: Callable[[DriveInfo], None] | None = None

    def log_of(self, planned: Planned, model_name: str) -> Path:
        """Return where the log of a pair lies."""
        return self.directory / model_name / f"{planned.name}.rlog.zst"

    def files(self, drives: Sequence[Planned]) -> dict[str, Path]:
        """Return what is written of all pairs, by what it is called in messages."""
        found: dict[str, Path] = {}
        for planned, name in product(drives, model_names(self.models)):
            log, pair = self.log_of(planned, name), f"{planned.name} by {name}"
            found |= {f"log of {pair}": log, f"table of {pair}": frames_path(log)}
            found |= {f"pictures of {pair}": pictures_path(log)}
            found |= {f"provenance of {pair}": provenance_path(log)}
        return found

    def run(self, planned: Planned, errors: list[DriveFailure]) -> list[DriveResult]:
        """Play one drive with every model, unless it is finished.

        `errors`: appended to. The result is a result for each model, in order, but for those that
        failed.
        """
        results = []
        for model, name in zip(self.models, model_names(self.models), strict=True):
            try:
                results.append(self._run_pair(planned, model, self.log_of(planned, name)))
            except DRIVE_ERRORS as error:
                errors.append(error)
        return results

    def _run_pair(self, planned: Planned, model: LoadedModel, log: Path) -> DriveResult:
        asked = Asked(
            drive=planned.info.identity,
            artifact=model.artifact.sha256,
            monitoring=model.monitoring.artifact.sha256 if model.monitoring else None,
            device=model.device,
            limit=self.limit,
            raw_predictions=PlaybackOptions().config.send_raw_predictions,
        )
        if not self.fresh and is_finished(log, asked):
            if self.on_kept is not None:
                self.on_kept(planned.info)
            pictures = load_pictures(pictures_path(log))
            return replace(read_result(planned.info, model.paths, log, pictures), kept=True)
        for one in model.parts:
            check_fits(one.path, one.artifact, planned.info)
        log.parent.mkdir(exist_ok=True)
        remove_outcome(log)
        with ExitStack() as stack:
            drive = open_drive(planned.text, self.drive_options)
            stack.callback(drive.close)
            shown = FramePictures(drive.info)
            options = PlaybackOptions(limit=self.limit, on_moment=self._watched(shown))
            outcome = run_drive(drive, model, log, options)
        pictures = shown.choose(MAX_PICTURES)
        save_pictures(pictures_path(log), pictures)
        result = read_result(planned.info, model.paths, log, pictures)
        write_provenance(asked, planned.info, model.path, outcome)
        return result

    def _watched(self, pictures: FramePictures) -> OnMoment:
        on_moment = self.on_moment
        if on_moment is None:
            return pictures.take

        def both(moment: Moment, result: StepResult | None) -> None:
            pictures.take(moment, result)
            on_moment(moment, result)

        return both


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
            "format": PROVENANCE_FORMAT,
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
