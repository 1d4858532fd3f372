"""Loads artifacts for playback and checks that they fit a drive.

Artifacts of two kinds can be played: a driving model or a driver monitoring model.
"""

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
    """The properties of one kind of artifact."""

    streams: tuple[str, ...]  # cameras that the daemon reads
    frame_inputs: tuple[str, ...]  # inputs of the program that are frames of these cameras
    missing: str  # error text for a drive without such a camera
    mistaken: str  # advice if another kind of artifact was expected


_KINDS = {
    DRIVING: _Kind(
        DAEMON_STREAMS,
        ("road_frame", "wide_frame"),
        "expected frames of a road or a wide camera, found none; the drive cannot be replayed",
        "pass driving models with --model",
    ),
    MONITORING: _Kind(
        (DRIVER_STREAM,),
        ("driver_frame",),
        "expected frames of a driver camera (dcamera.hevc of a segment), found none; fetch them, "
        "or leave --monitoring out",
        "pass driver monitoring to modeld replay with --monitoring",
    ),
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """An artifact on a device. Close it, or use it as a context manager."""

    path: Path  # as given by the user
    artifact: Artifact  # the checked file
    program: Program  # the program on the device
    device: str  # name and driver of the device, on which the last bits of outputs depend
    # Driver monitoring that runs together with a driving model; its loader closes it.
    monitoring: LoadedModel | None = None

    @property
    def parts(self) -> tuple[LoadedModel, ...]:
        """This model and its driver monitoring, if any."""
        return (self,) if self.monitoring is None else (self, self.monitoring)

    @property
    def paths(self) -> dict[str, Path]:
        """The path of each artifact, by kind."""
        return {one.artifact.manifest.kind: one.path for one in self.parts}

    @property
    def programs(self) -> Programs:
        """The programs for a session."""
        found = {one.artifact.manifest.kind: one.program for one in self.parts}
        return Programs(found.get(DRIVING), found.get(MONITORING))

    def close(self) -> None:
        """Release the device memory."""
        self.program.close()

    def __enter__(self) -> LoadedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load_model(path: Path, device: str | None = None, kind: str = DRIVING) -> LoadedModel:
    """Load an artifact of a kind.

    Raises:
        ArtifactMismatchError: the artifact is of another kind.
        RuntimeFault: the artifact is missing or damaged, or no device can run it.
    """
    artifact = read_artifact_of(path, kind)
    opened = choose_device(device)
    described = f"{opened.info.name}, {opened.info.driver}"
    return LoadedModel(path, artifact, load_program(artifact, opened), described)


@contextmanager
def loaded_models(
    paths: Sequence[Path], monitoring: Path | None, device: str | None = None
) -> Iterator[list[LoadedModel]]:
    """Load driving artifacts, each with driver monitoring if given, or driver monitoring alone.

    `paths`: driving artifacts; if empty, monitoring alone is loaded. `monitoring`: a driver
    monitoring artifact, or None. `device`: see `choose_device`.

    Raises:
        ArtifactMismatchError, RuntimeFault: as for `load_model`.
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
    """Reject artifacts that are of the wrong kind or do not fit a drive, before loading them.

    `paths`: driving artifacts. `monitoring`: a driver monitoring artifact, or None.

    Raises:
        ArtifactMismatchError, ArtifactError: as for `read_artifact_of` and `check_fits`.
    """
    asked = [(path, DRIVING) for path in paths]
    asked += [] if monitoring is None else [(monitoring, MONITORING)]
    artifacts = [(path, read_artifact_of(path, kind)) for path, kind in asked]
    for path, artifact in artifacts:
        check_fits(path, artifact, info)


def read_driving_artifact(path: Path) -> Artifact:
    """Read and check a driving artifact; raise as `read_artifact_of` does."""
    return read_artifact_of(path, DRIVING)


def read_artifact_of(path: Path, kind: str) -> Artifact:
    """Read and check an artifact of a given kind.

    Raises:
        ArtifactMismatchError: the artifact is of another kind.
        ArtifactError: the artifact is missing or damaged.
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
    """Return the largest frame that an artifact accepts, in bytes."""
    inputs = _KINDS[artifact.manifest.kind].frame_inputs
    buffers = artifact.manifest.buffers
    return min(
        buffers[index].shape[0]
        for entry in artifact.manifest.entries
        for index in entry.inputs
        if buffers[index].name in inputs
    )


def check_fits(path: Path, artifact: Artifact, info: DriveInfo) -> None:
    """Reject an artifact that cannot take the drive's frames, before anything is decoded.

    `path`: path of the artifact, for messages. `artifact`: the checked file.

    Raises:
        ArtifactMismatchError: the frames are too large, or the drive has no camera that the daemon
            reads.
    """
    kind = _KINDS[artifact.manifest.kind]
    formats = [info.formats[name] for name in kind.streams if name in info.formats]
    if not formats:
        raise ArtifactMismatchError(f"{info.name}: {kind.missing}")
    for layout in formats:
        check_frame(path, artifact, layout)


def check_frame(path: Path, artifact: Artifact, layout: FrameFormat) -> None:
    """Reject an artifact for which frames are too large.

    `path`: path of the artifact, for messages. `artifact`: the checked file.

    Raises:
        ArtifactMismatchError: the frames are too large.
    """
    capacity = frame_capacity(artifact)
    if layout.payload_bytes > capacity:
        size = f"{layout.width}x{layout.height}"
        raise ArtifactMismatchError(
            f"{path}: expected frames of at most {capacity} bytes, found {size} with "
            f"{layout.payload_bytes}; compile the models again with --camera {size}"
        )
