"""Runs one drive for a regression: the job and its result, which can travel between machines.

On devices that compute the same, `run_job` returns the same outputs everywhere. Data that depends
on the machine, above all times, is in `JobResult.measured`. The workers of `pool` and `cluster`
call it. `single_drives` expands the ranges and routes of a regression into single drives, or into
one shard of them.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from cereal.errors import CerealError
from cereal.schema import member_name, read_event
from modeld.errors import ModeldError
from modeld.service.config import Config
from runtime.errors import RuntimeFault
from runtime.format.interfaces import parse_interface, parse_monitoring_interface
from runtime.format.manifest import Manifest
from runtime.opencl.device import choose_device
from tools.drives.drive import DriveInfo
from tools.drives.open_drive import DriveOptions, expand_drives, open_drive
from tools.errors import ArtifactMismatchError, ToolError, UsageError, VideoError
from tools.regress.judge.packing import content_digest, pack, rule_of
from tools.regress.run_facts import (
    ProgramFacts,
    describe_environment,
    model_hash,
    program_facts,
    reference_class,
)

if TYPE_CHECKING:
    from tools.playback.model import LoadedModel

logger = logging.getLogger(__name__)
MAX_SHARDS = 1000


@dataclass(frozen=True, slots=True)
class Job:
    """A drive to run."""

    drive: str  # one drive, as text for `open_drive`
    options: DriveOptions  # options for opening it
    artifact: Path  # path of the program on the machine that runs the job
    artifact_sha256: str  # digest of the program; other files are refused
    code_sha256: str  # digest of the code that runs the job, see `code_digest`
    device: str | None = None  # OpenCL device; None: the best
    # Path of a driver monitoring artifact to run as well; None: there is none.
    monitoring: Path | None = None
    monitoring_sha256: str = ""

    @property
    def key(self) -> str:
        """64 hex digits, equal for jobs with equal outputs, whatever their files' paths."""
        options = self.options
        parts = (
            self.drive,
            options.telemetry,
            options.focal_px,
            options.camera,
            options.rate_hz,
            options.driver_camera,
            self.artifact_sha256,
            self.code_sha256,
            self.device,
            self.monitoring_sha256,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class DriveName:
    """Name and identity of a result's drive."""

    name: str  # display name
    kind: str  # kind of drive
    identity: str  # sha256, see `DriveInfo.identity`
    rate_hz: float  # frame rate of the main camera


@dataclass(frozen=True, slots=True)
class Launches:
    """The size of one entry of a program."""

    launches: int  # number of kernel launches per run
    kernels: int  # number of different kernels among them


@dataclass(frozen=True, slots=True)
class Measured:
    """The results that differ from run to run."""

    execution_s: tuple[float, ...] = ()  # time of each frame in seconds; 0 if the model did not run
    wall_s: float = 0.0  # time for the whole drive, without loading
    peak_rss_bytes: int = 0  # peak memory of the process so far
    environment: Mapping[str, str] = field(default_factory=dict)  # see `describe_environment`


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job."""

    key: str  # key of the job
    drive: DriveName | None = None  # None if the drive could not be opened
    outputs: bytes = b""  # messages and frame table, see `packing.unpack`; empty after an error
    digest: str = ""  # sha256 of the content of ``outputs``; equal for equal outputs
    model: str = ""  # hash of the models, see `model_hash`
    interface: str = ""  # name of the program's revision
    device_class: str = ""  # see `run_facts.reference_class`
    launches: Mapping[str, Launches] = field(default_factory=dict)  # entry -> its size
    # The car's speed at each frame, by frame id; NaN before it is known.
    speeds_mps: Mapping[int, float] = field(default_factory=dict)
    # Digests of the program's kernels and weights.
    program: ProgramFacts = field(default_factory=ProgramFacts)
    measured: Measured = field(default_factory=Measured)  # results that differ from run to run
    error: str = ""  # error in one line; "" after success
    exit_code: int = 0  # exit code of the error


class ModelHolder:
    """Holds the program of a process, so that jobs with the same program load it once."""

    def __init__(self) -> None:
        self._model: LoadedModel | None = None
        self._loading = ExitStack()
        self._wanted: tuple[object, ...] | None = None

    def get(self, job: Job) -> LoadedModel:
        """Return the job's program on its device; it is loaded unless it was the last one used.

        Raises:
            ArtifactMismatchError: the file has another digest than the job's.
            RuntimeFault: the file cannot be read or loaded.
        """
        from tools.playback.model import loaded_models

        expected = (job.artifact_sha256, job.monitoring_sha256)
        wanted = (job.artifact, job.monitoring, *expected, job.device)
        if self._model is None or self._wanted != wanted:
            self.close()
            with ExitStack() as stack:
                (model,) = stack.enter_context(
                    loaded_models([job.artifact], job.monitoring, job.device)
                )
                for part, sha256 in zip(model.parts, expected, strict=False):
                    if part.artifact.sha256 != sha256:
                        raise ArtifactMismatchError(
                            f"{part.path}: expected the artifact {sha256[:12]}, found "
                            f"{part.artifact.sha256[:12]}; it was replaced while drives ran, run "
                            "again"
                        )
                self._loading = stack.pop_all()
            self._model, self._wanted = model, wanted
        return self._model

    def close(self) -> None:
        """Release the programs."""
        self._loading.close()
        self._model = self._wanted = None


def run_job(job: Job, holder: ModelHolder) -> JobResult:
    """Run a drive and return the packed outputs; errors are returned in the result.

    `holder`: keeps the program from job to job.
    """
    key = job.key
    try:
        return _run(job, key, holder)
    except (ToolError, ModeldError, RuntimeFault, CerealError) as error:
        return JobResult(key, error=one_line(error), exit_code=error.exit_code)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return JobResult(key, error=f"{where}{error.strerror or error}", exit_code=1)
    except Exception as error:
        logger.debug("%s", job.drive, exc_info=True)
        text = f"{job.drive}: unexpected {type(error).__name__}: {one_line(error)}"
        return JobResult(key, error=text, exit_code=1)


def one_line(error: Exception) -> str:
    """Return an error's text on one line."""
    return " ".join(str(error).split())


class _EventCollector:
    """Collects the daemons' messages of a drive, and the car's speed at each frame.

    `services`: the services that the daemons publish.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self._services = services
        self.messages: list[bytes] = []
        self.speeds_mps: dict[int, float] = {}
        self._speed = math.nan

    def add(self, data: bytes) -> None:
        """Process one event of the log."""
        event = read_event(data)
        name = member_name(event)
        if name in self._services:
            self.messages.append(data)
        if name == "modelV2":
            self.speeds_mps[int(event.modelV2.frameId)] = self._speed
        elif name == "carState":
            self._speed = float(event.carState.vEgo)


def _run(job: Job, key: str, holder: ModelHolder) -> JobResult:
    from tools.playback.model import check_fits
    from tools.playback.run_drive import PlaybackOptions, peak_rss_bytes, play

    drive = open_drive(job.drive, job.options)
    try:
        model = holder.get(job)
        for one in model.parts:
            check_fits(one.path, one.artifact, drive.info)
        kept = _EventCollector(model.programs.publications)
        # Fixed settings, independent of the environment: raw vectors would be stored too.
        config = Config(demo=True, send_raw_predictions=False)
        options = PlaybackOptions(digest_inputs=True, config=config)
        frames, wall_s = play(drive, model.programs, kept.add, options)
        # A damaged drive can end early without an error, but a reference needs the whole drive.
        if damage := getattr(drive, "damage", ""):
            raise VideoError(damage)
        outputs = pack(kept.messages, frames, rule_of)
        info, manifest = choose_device(job.device).info, model.artifact.manifest
        artifacts = [one.artifact for one in model.parts]
        return JobResult(
            key=key,
            drive=_name_of(drive.info),
            outputs=outputs,
            digest=content_digest(outputs),
            model=model_hash(*(one.manifest for one in artifacts)),
            interface=" and ".join(_interface_of(one.manifest) for one in artifacts),
            device_class=reference_class(info, *(one.manifest for one in artifacts)),
            launches=launches_of(*(one.manifest for one in artifacts)),
            speeds_mps=kept.speeds_mps,
            program=program_facts(*artifacts),
            measured=Measured(
                execution_s=tuple(frames.execution_s.tolist()),
                wall_s=wall_s,
                peak_rss_bytes=peak_rss_bytes(),
                environment=describe_environment(info, manifest),
            ),
        )
    finally:
        drive.close()


def _name_of(info: DriveInfo) -> DriveName:
    return DriveName(info.name, info.kind, info.identity, info.rate_hz)


def _interface_of(manifest: Manifest) -> str:
    parse = parse_interface if manifest.kind == "driving" else parse_monitoring_interface
    return parse(manifest.metadata["interface"]).name


def launches_of(*manifests: Manifest) -> dict[str, Launches]:
    """Return the sizes of all entries; names of monitoring entries are prefixed with its kind."""
    found = {}
    for manifest in manifests:
        prefix = "" if manifest.kind == "driving" else f"{manifest.kind} "
        for entry in manifest.entries:
            kernels = {
                (manifest.kernels[index].program, manifest.kernels[index].name)
                for index in entry.launches
            }
            found[prefix + entry.name] = Launches(len(entry.launches), len(kernels))
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several parts of a set of drives, to divide them between machines."""

    index: int  # from 1
    count: int

    def has(self, drive: str) -> bool:
        """Whether a drive belongs to the shard; depends only on its name, not on other drives."""
        # Drives can be in different directories on different machines.
        name = "/".join(PurePath(drive).parts[-2:])
        digest = hashlib.sha256(name.encode(errors="surrogateescape")).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.index - 1


def parse_shard(text: str) -> Shard:
    """Return the shard of a command line option.

    Raises:
        UsageError: the text is not I/N with 1 <= I <= N.
    """
    found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text, re.ASCII)
    shard = Shard(int(found[1]), int(found[2])) if found else Shard(0, 0)
    if not 1 <= shard.index <= shard.count <= MAX_SHARDS:
        raise UsageError(
            f"--shard: expected I/N with 1 <= I <= N <= {MAX_SHARDS}, found {text!r}; for example "
            "1/4"
        )
    return shard


def single_drives(
    texts: Sequence[str], options: DriveOptions, shard: Shard | None = None
) -> Iterator[tuple[str, ToolError | None]]:
    """Yield each single drive once, in order, with an error for texts that name no drive.

    `texts`: drives as the user named them. `options`: options for opening them. `shard`: yield only
    the drives of this shard; None: all.
    """
    seen: set[str] = set()
    for text in texts:
        error: ToolError | None = None
        try:
            drives = expand_drives([text], options)
        except ToolError as found:
            drives, error = [text], found
        for drive in drives:
            # Paths that lead to the same file are the same drive.
            place = os.path.realpath(drive) if os.path.lexists(drive) else drive
            if place not in seen and (shard is None or shard.has(drive)):
                yield drive, error
            seen.add(place)
