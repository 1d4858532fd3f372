"""One drive to run and its result, as values that travel between processes and machines.

`run_job` gives the same outputs wherever it runs on devices that compute the same: what depends on
the place, times above all, is in `JobResult.measured`. Called by the pool's workers, and by whoever
ships jobs elsewhere. `single_drives` takes the ranges and routes of a regression apart: each drive
once, or one shard of them.
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

    drive: str  # text of one drive, as `open_drive` takes it
    options: DriveOptions  # how it is opened
    artifact: Path  # path of the program on the machine that runs the job
    artifact_sha256: str  # of it; a file of another content is refused
    code_sha256: str  # of the code that runs it, see `code_digest`
    device: str | None = None  # OpenCL device, None: the best
    # Path of a driver monitoring artifact that runs beside; None: none does.
    monitoring: Path | None = None
    monitoring_sha256: str = ""

    @property
    def key(self) -> str:
        """64 hex digits: equal for jobs that have the same outputs, wherever files lie."""
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
    """What a result says of its drive."""

    name: str  # what users call it
    kind: str  # of drive
    identity: str  # sha256, see `DriveInfo.identity`
    rate_hz: float  # of the main camera


@dataclass(frozen=True, slots=True)
class Launches:
    """Size of one entry of a program."""

    launches: int  # kernels that are launched, each time one is
    kernels: int  # different functions among them


@dataclass(frozen=True, slots=True)
class Measured:
    """What another run of the same job would measure anew."""

    execution_s: tuple[float, ...] = ()  # of each frame, seconds; 0 where the model did not run
    wall_s: float = 0.0  # of the whole drive, without loading
    peak_rss_bytes: int = 0  # of the process so far
    environment: Mapping[str, str] = field(default_factory=dict)  # see `describe_environment`


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job."""

    key: str  # of the job
    drive: DriveName | None = None  # None where it could not be opened
    outputs: bytes = b""  # messages and frame table, see `packing.unpack`; empty with an error
    digest: str = ""  # sha256 of what is in ``outputs``; equal for equal outputs
    model: str = ""  # hash of the models, see `model_hash`
    interface: str = ""  # name of the program's revision
    device_class: str = ""  # see `run_facts.reference_class`
    launches: Mapping[str, Launches] = field(default_factory=dict)  # entry -> its size
    # The car's speed at each frame, by frame id; NaN before it is known.
    speeds_mps: Mapping[int, float] = field(default_factory=dict)
    # Digests of its kernels and weights.
    program: ProgramFacts = field(default_factory=ProgramFacts)
    measured: Measured = field(default_factory=Measured)  # differs from run to run
    error: str = ""  # one line; "" when it ran well
    exit_code: int = 0  # that belongs to the error


class ModelHolder:
    """The program of a process: loaded once, for all jobs that want it."""

    def __init__(self) -> None:
        self._model: LoadedModel | None = None
        self._loading = ExitStack()
        self._wanted: tuple[object, ...] | None = None

    def get(self, job: Job) -> LoadedModel:
        """Return the job's program on its device, loaded if it is another than the last.

        Raises:
            ArtifactMismatchError: the file is not what the job names.
            RuntimeFault: it cannot be read or loaded.
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
    """Run a drive and pack what came of it; what goes wrong is in the result.

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
    """Return an error's text in one line."""
    return " ".join(str(error).split())


class _Kept:
    """What is kept of a drive's events: the daemons' messages, and how fast the car was.

    `services`: what the daemons publish.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self._services = services
        self.messages: list[bytes] = []
        self.speeds_mps: dict[int, float] = {}
        self._speed = math.nan

    def add(self, data: bytes) -> None:
        """Take note of an event."""
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
        kept = _Kept(model.programs.publications)
        # The daemon's settings are ours, not the environment's: raw vectors would be kept too.
        config = Config(demo=True, send_raw_predictions=False)
        options = PlaybackOptions(digest_inputs=True, config=config)
        frames, wall_s = play(drive, model.programs, kept.add, options)
        # Of drives that keep what precedes damage: a reference is of the whole drive.
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
    """Return the sizes of the entries, by name; those of monitoring have its kind before them."""
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
    """One of several parts of a set of drives, for machines that each run one."""

    index: int  # from 1
    count: int

    def has(self, drive: str) -> bool:
        """Whether a drive belongs to it: by its name alone, so that others do not move it."""
        # Machines may have their drives in different places.
        name = "/".join(PurePath(drive).parts[-2:])
        digest = hashlib.sha256(name.encode(errors="surrogateescape")).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.index - 1


def parse_shard(text: str) -> Shard:
    """Return the shard that a user named.

    Raises:
        UsageError: it is no I/N with 1 <= I <= N.
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
    """Yield each single drive once, in order; with an error what names none.

    `texts`: as a user named them. `options`: how they are opened. `shard`: only its drives; None:
    all.
    """
    seen: set[str] = set()
    for text in texts:
        error: ToolError | None = None
        try:
            drives = expand_drives([text], options)
        except ToolError as found:
            drives, error = [text], found
        for drive in drives:
            # The same file by another name is the same drive.
            place = os.path.realpath(drive) if os.path.lexists(drive) else drive
            if place not in seen and (shard is None or shard.has(drive)):
                yield drive, error
            seen.add(place)
