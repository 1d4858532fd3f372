"""Replays several drives through several models and keeps one log for each pair.

In the output directory a pair's log is ``MODEL/DRIVE.rlog.zst``, with its frame table and pictures
next to it. The provenance, ``<log>.json``, records the inputs of the log and is written last, so a
log without provenance is incomplete. A later run keeps a log if its provenance matches the request.
A drive that cannot be read does not stop the others.
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

# Part of the provenance. It changes whenever the same inputs produce another log.
PROVENANCE_FORMAT = 1
# Errors of a single drive, after which the others continue. A device failure, a full disk and an
# interrupt are not among them, because they would fail the next drive, too.
DRIVE_ERRORS = (ToolError, ModeldError, CerealError)
DriveFailure = ToolError | ModeldError | CerealError


@dataclass(frozen=True, slots=True)
class Planned:
    """A drive that could be opened."""

    text: str  # text that names the drive for `open_drive`
    info: DriveInfo  # its description
    name: str  # its file name in the output


@dataclass(slots=True)
class Plan:
    """The drives to play."""

    # The drives that could be opened, in the requested order.
    drives: list[Planned] = field(default_factory=list)
    # The errors so far, one for each drive that could not be opened.
    errors: list[DriveFailure] = field(default_factory=list)


def plan_drives(texts: Sequence[str], options: DriveOptions) -> Plan:
    """Open each drive once, to learn its name, length and identity."""
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
    """Return the name of a drive or model as a file name, without separators."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip(".")[:100] or "_"


def model_names(models: Sequence[LoadedModel]) -> list[str]:
    """Return each model's directory name: the artifact's name, with a digest if it repeats."""
    stems = [file_name(model.path.stem) for model in models]
    return [
        f"{stem}-{model.artifact.sha256[:8]}" if stems.count(stem) > 1 else stem
        for stem, model in zip(stems, models, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Batch:
    """The settings that all pairs share."""

    directory: Path  # output directory; exists
    models: Sequence[LoadedModel]
    drive_options: DriveOptions  # options for opening drives
    limit: int | None = None  # number of moments to play of each drive; None for all
    fresh: bool = False  # whether to ignore finished logs
    on_moment: OnMoment | None = None  # called after each played moment
    # Called with each drive whose finished log is kept instead of played.
    on_kept: Callable[[DriveInfo], None] | None = None

    def log_of(self, planned: Planned, model_name: str) -> Path:
        """Return the path of a pair's log."""
        return self.directory / model_name / f"{planned.name}.rlog.zst"

    def files(self, drives: Sequence[Planned]) -> dict[str, Path]:
        """Return the output files of all pairs, by their names in messages."""
        found: dict[str, Path] = {}
        for planned, name in product(drives, model_names(self.models)):
            log, pair = self.log_of(planned, name), f"{planned.name} by {name}"
            found |= {f"log of {pair}": log, f"table of {pair}": frames_path(log)}
            found |= {f"pictures of {pair}": pictures_path(log)}
            found |= {f"provenance of {pair}": provenance_path(log)}
        return found

    def run(self, planned: Planned, errors: list[DriveFailure]) -> list[DriveResult]:
        """Play one drive with every model, except for pairs that are finished.

        Errors are appended to `errors`. Returns the results in order of the models, without the
        failed ones.
        """
        results = []
        for model, name in zip(self.models, model_names(self.models), strict=True):
            try:
                results.append(self._run_pair(planned, model, self.log_of(planned, name)))
            except DRIVE_ERRORS as error:
                errors.append(error)
        return results

    def _run_pair(self, planned: Planned, model: LoadedModel, log: Path) -> DriveResult:
        """Return the result of a pair, from its finished log or by playing the drive."""
        inputs = LogInputs(
            drive=planned.info.identity,
            artifact=model.artifact.sha256,
            monitoring=model.monitoring.artifact.sha256 if model.monitoring else None,
            device=model.device,
            limit=self.limit,
            raw_predictions=PlaybackOptions().config.send_raw_predictions,
        )
        if not self.fresh and is_finished(log, inputs):
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
            options = PlaybackOptions(limit=self.limit, on_moment=self._with_pictures(shown))
            outcome = run_drive(drive, model, log, options)
        pictures = shown.choose(MAX_PICTURES)
        save_pictures(pictures_path(log), pictures)
        result = read_result(planned.info, model.paths, log, pictures)
        write_provenance(inputs, planned.info, model.path, outcome)
        return result

    def _with_pictures(self, pictures: FramePictures) -> OnMoment:
        on_moment = self.on_moment
        if on_moment is None:
            return pictures.take

        def both(moment: Moment, result: StepResult | None) -> None:
            pictures.take(moment, result)
            on_moment(moment, result)

        return both


@dataclass(frozen=True, slots=True)
class LogInputs:
    """The inputs that determine the bytes of a log."""

    drive: str  # identity of the drive, which includes its options
    artifact: str  # sha256 of the driving artifact
    device: str  # name and driver of the device
    limit: int | None  # number of moments to play; None for all
    raw_predictions: bool  # whether messages include the raw prediction vectors
    monitoring: str | None = None  # sha256 of the driver monitoring artifact; None if there is none

    def as_json(self) -> dict[str, Any]:
        """Return the values to compare, as plain data."""
        # Logs without monitoring have no such key, so that older ones still match.
        monitoring = {} if self.monitoring is None else {"monitoring": self.monitoring}
        return monitoring | {
            "format": PROVENANCE_FORMAT,
            "version": _version(),
            "drive": self.drive,
            "artifact": self.artifact,
            "device": self.device,
            "limit": self.limit,
            "raw_predictions": self.raw_predictions,
        }


def provenance_path(log: Path) -> Path:
    """Return the path of a log's provenance."""
    return log.with_name(log.name + ".json")


def is_finished(log: Path, inputs: LogInputs) -> bool:
    """Return whether a log is complete and was made from the requested inputs."""
    try:
        found = json.loads(provenance_path(log).read_text(encoding="utf-8"))
        whole = log.stat().st_size == found["log_bytes"]
        return whole and found["made_from"] == inputs.as_json() and frames_path(log).is_file()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def remove_outcome(log: Path) -> None:
    """Remove a log and the files next to it, starting with the provenance."""
    for path in (provenance_path(log), frames_path(log), log):
        path.unlink(missing_ok=True)


def write_provenance(inputs: LogInputs, info: DriveInfo, model: Path, outcome: Outcome) -> None:
    """Write the provenance, which marks a log as finished.

    Raises:
        UsageError: the file cannot be written.
    """
    path = provenance_path(outcome.log)
    content = {
        "made_from": inputs.as_json(),
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
