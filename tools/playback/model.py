"""A driving artifact loaded for playing, and whether it fits a drive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cereal.frame_format import FrameFormat
from runtime import load_program
from runtime.artifact import Artifact, read_artifact
from runtime.device import choose_device
from runtime.program import Program
from tools.drives.drive import DriveInfo
from tools.errors import ArtifactMismatchError
from tools.playback.session import DAEMON_STREAMS

FRAME_INPUTS = ("road_frame", "wide_frame")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """An artifact on a device; close it, or use it as a context.

    Attributes:
        path: as the user named it.
        artifact: the checked file.
        program: on the device.
        device: name and driver of the device, which may change the last bits of outputs.
    """

    path: Path
    artifact: Artifact
    program: Program
    device: str

    def close(self) -> None:
        """Release the device's memory."""
        self.program.close()

    def __enter__(self) -> LoadedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load_model(path: Path, device: str | None = None) -> LoadedModel:
    """Load a driving artifact.

    Raises:
        ArtifactMismatchError: it is not a driving artifact.
        RuntimeFault: it is missing or damaged, or no device can run it.
    """
    artifact = read_driving_artifact(path)
    opened = choose_device(device)
    described = f"{opened.info.name}, {opened.info.driver}"
    return LoadedModel(path, artifact, load_program(artifact, opened), described)


def read_driving_artifact(path: Path) -> Artifact:
    """Read and check an artifact, and that it is a driving one.

    Raises:
        ArtifactMismatchError: it is another kind of artifact.
        ArtifactError: it is missing or damaged.
    """
    artifact = read_artifact(path)
    kind = artifact.manifest.kind
    if kind != "driving":
        advice = (
            f"driver monitoring is not replayed, run it with: modeld run --model {path}"
            if kind == "monitoring"
            else "compile driving models without --plain"
        )
        raise ArtifactMismatchError(
            f"{path}: expected a driving artifact, found a {kind} one; {advice}"
        )
    return artifact


def frame_capacity(artifact: Artifact) -> int:
    """Return how many bytes of a frame a driving artifact takes."""
    buffers = artifact.manifest.buffers
    return min(
        buffers[index].shape[0]
        for entry in artifact.manifest.entries
        for index in entry.inputs
        if buffers[index].name in FRAME_INPUTS
    )


def check_fits(path: Path, artifact: Artifact, info: DriveInfo) -> None:
    """Refuse an artifact that the drive's frames are too large for, before anything is decoded.

    Args:
        path: of the artifact, for messages.
        artifact: the checked file.
        info: of the drive.

    Raises:
        ArtifactMismatchError: the drive's frames are too large for it, or the drive has no camera
            that the daemon watches.
    """
    formats = [info.formats[name] for name in DAEMON_STREAMS if name in info.formats]
    if not formats:
        raise ArtifactMismatchError(
            f"{info.name}: expected frames of a road or a wide camera, found none; the drive "
            "cannot be replayed"
        )
    for layout in formats:
        check_frame(path, artifact, layout)


def check_frame(path: Path, artifact: Artifact, layout: FrameFormat) -> None:
    """Refuse an artifact that frames are too large for.

    Args:
        path: of the artifact, for messages.
        artifact: the checked file.
        layout: of the frames.

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
