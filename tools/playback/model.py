"""Artifacts loaded for playing, of driving and of driver monitoring; whether they fit a drive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from cereal.frame_ring import FrameFormat
from modeld.startup import DRIVER_STREAM
from runtime import load_program
from runtime.format.artifact import Artifact, read_artifact
from runtime.opencl.device import choose_device
from runtime.run.program import Program
from tools.drives.drive import DriveInfo
from tools.errors import ArtifactMismatchError
from tools.playback.session import DAEMON_STREAMS, Programs

DRIVING, MONITORING = "driving", "monitoring"


@dataclass(frozen=True, slots=True)
class _Kind:
    """What artifacts of one kind take."""

    streams: tuple[str, ...]  # cameras that the daemon watches
    frame_inputs: tuple[str, ...]  # inputs of the program that take their frames
    missing: str  # what a drive without such a camera is told
    mistaken: str  # what to do where another kind was asked for


_KINDS = {
    DRIVING: _Kind(
        DAEMON_STREAMS,
        ("road_frame", "wide_frame"),
        "expected frames of a road or a wide camera, found none; the drive cannot be replayed",
        "driving models are given as --model",
    ),
    MONITORING: _Kind(
        (DRIVER_STREAM,),
        ("driver_frame",),
        "expected frames of a driver camera (dcamera.hevc of a segment), found none; fetch them, "
        "or leave --monitoring out",
        "driver monitoring is given to modeld replay as --monitoring",
    ),
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """An artifact on a device; close it, or use it as a context."""

    path: Path  # as the user named it
    artifact: Artifact  # the checked file
    program: Program  # on the device
    device: str  # name and driver of the device, which may change the last bits of outputs
    # Driver monitoring that runs beside a driving model; closed by who loaded it.
    monitoring: LoadedModel | None = None

    @property
    def parts(self) -> tuple[LoadedModel, ...]:
        """This one, and what runs beside it."""
        return (self,) if self.monitoring is None else (self, self.monitoring)

    @property
    def paths(self) -> dict[str, Path]:
        """Kind -> path of its artifact."""
        return {one.artifact.manifest.kind: one.path for one in self.parts}

    @property
    def programs(self) -> Programs:
        """What a session runs."""
        found = {one.artifact.manifest.kind: one.program for one in self.parts}
        return Programs(found.get(DRIVING), found.get(MONITORING))

    def close(self) -> None:
        """Release the device's memory."""
        self.program.close()

    def __enter__(self) -> LoadedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load_model(path: Path, device: str | None = None, kind: str = DRIVING) -> LoadedModel:
    """Load an artifact of a kind.

    Raises:
        ArtifactMismatchError: it is of another kind.
        RuntimeFault: it is missing or damaged, or no device can run it.
    """
    artifact = read_artifact_of(path, kind)
    opened = choose_device(device)
    described = f"{opened.info.name}, {opened.info.driver}"
    return LoadedModel(path, artifact, load_program(artifact, opened), described)


@contextmanager
def loaded_models(
    paths: Sequence[Path], monitoring: Path | None, device: str | None = None
) -> Iterator[list[LoadedModel]]:
    """Load driving artifacts with driver monitoring beside each, or driver monitoring alone.

    `paths`: of driving artifacts; none: monitoring alone is loaded. `monitoring`: a monitoring
    artifact; None: driving only. `device`: see `choose_device`.

    Raises:
        ArtifactMismatchError, RuntimeFault: as `load_model`.
    """
    with ExitStack() as stack:
        beside = None
        if monitoring is not None:
            beside = stack.enter_context(load_model(monitoring, device, MONITORING))
        models = [stack.enter_context(load_model(path, device)) for path in paths]
        if not models and beside is not None:
            yield [beside]
        else:
            yield [replace(model, monitoring=beside) for model in models]


def check_paths(paths: Sequence[Path], monitoring: Path | None, info: DriveInfo) -> None:
    """Refuse artifacts that are of another kind or do not fit a drive, before they are loaded.

    `paths`: of driving artifacts. `monitoring`: a monitoring artifact, if one is to run.

    Raises:
        ArtifactMismatchError, ArtifactError: as `read_artifact_of` and `check_fits`.
    """
    asked = [(path, DRIVING) for path in paths]
    asked += [] if monitoring is None else [(monitoring, MONITORING)]
    artifacts = [(path, read_artifact_of(path, kind)) for path, kind in asked]
    for path, artifact in artifacts:
        check_fits(path, artifact, info)


def read_driving_artifact(path: Path) -> Artifact:
    """Read and check an artifact, and that it is a driving one; raises as `read_artifact_of`."""
    return read_artifact_of(path, DRIVING)


def read_artifact_of(path: Path, kind: str) -> Artifact:
    """Read and check an artifact, and that it is of a kind.

    Raises:
        ArtifactMismatchError: it is another kind of artifact.
        ArtifactError: it is missing or damaged.
    """
    artifact = read_artifact(path)
    found = artifact.manifest.kind
    if found != kind:
        known = _KINDS.get(found)
        advice = f"compile {kind} models without --plain" if known is None else known.mistaken
        raise ArtifactMismatchError(
            f"{path}: expected a {kind} artifact, found a {found} one; {advice}"
        )
    return artifact


def frame_capacity(artifact: Artifact) -> int:
    """Return how many bytes of a frame an artifact takes."""
    inputs = _KINDS[artifact.manifest.kind].frame_inputs
    buffers = artifact.manifest.buffers
    return min(
        buffers[index].shape[0]
        for entry in artifact.manifest.entries
        for index in entry.inputs
        if buffers[index].name in inputs
    )


def check_fits(path: Path, artifact: Artifact, info: DriveInfo) -> None:
    """Refuse an artifact that the drive's frames are too large for, before anything is decoded.

    `path`: of the artifact, for messages. `artifact`: the checked file.

    Raises:
        ArtifactMismatchError: the drive's frames are too large for it, or the drive has no camera
            that the daemon watches.
    """
    kind = _KINDS[artifact.manifest.kind]
    formats = [info.formats[name] for name in kind.streams if name in info.formats]
    if not formats:
        raise ArtifactMismatchError(f"{info.name}: {kind.missing}")
    for layout in formats:
        check_frame(path, artifact, layout)


def check_frame(path: Path, artifact: Artifact, layout: FrameFormat) -> None:
    """Refuse an artifact that frames are too large for.

    `path`: of the artifact, for messages. `artifact`: the checked file.

    Raises:
        ArtifactMismatchError: they are.
    """
    capacity = frame_capacity(artifact)
    if layout.payload_bytes > capacity:
        size = f"{layout.width}x{layout.height}"
        raise ArtifactMismatchError(
            f"{path}: expected frames of at most {capacity} bytes, found {size} with "
            f"{layout.payload_bytes}; compile the models again with --camera {size}"
        )
