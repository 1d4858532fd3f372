"""Renders one camera's file of one segment: the unit of work of a worker process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tools.render.driver_painter import DriverPainter
from tools.render.hevc import Packet, encode_file
from tools.render.painter import DrivePainter
from tools.render.recorded_motion import recorded_motion
from tools.render.small_video import encode_small
from tools.render.spec import FRAME_NS, SMALL, DriveSpec
from tools.render.world import TICK_NS, World, seeded_motion
from tools.world.painting.sky import Picture

FILES = {
    "road": "fcamera.hevc",
    "wide": "ecamera.hevc",
    "driver": "dcamera.hevc",
    SMALL: "qcamera.ts",
}


class FileJob(NamedTuple):
    """One file to be rendered."""

    spec: DriveSpec
    stream: str
    segment: int
    path: Path


def build_world(spec: DriveSpec) -> World:
    """Return the world of a drive.

    Raises:
        ToolError: the telemetry cannot be used.
    """
    if spec.telemetry is not None:
        return World(recorded_motion(spec.telemetry, spec.seed, spec.frames)[0])
    return World(seeded_motion(spec.seed, spec.frames * FRAME_NS / 1e9))


def render_file(job: FileJob, count: Callable[[], None]) -> list[Packet]:
    """Render and encode the frames that a camera delivered.

    Args:
        job: what to render.
        count: called after each picture.

    Raises:
        OSError: the file cannot be written.
    """
    spec = job.spec
    pictures = _pictures(job, count)
    if job.stream == SMALL:
        ids = spec.delivered(job.stream, job.segment)
        ends_ns = [spec.sof_ns(job.stream, one) + spec.readout_ns for one in ids]
        return encode_small(job.path, pictures, ends_ns)
    return encode_file(job.path, spec.camera(job.stream), pictures)


def _pictures(job: FileJob, count: Callable[[], None]) -> Iterator[Picture]:
    painter = _painter(job)
    for frame_id in job.spec.delivered(job.stream, job.segment):
        yield painter.paint(frame_id * FRAME_NS // TICK_NS)
        count()


def _painter(job: FileJob) -> DrivePainter | DriverPainter:
    spec = job.spec
    if job.stream == "driver":
        seconds = spec.frames * FRAME_NS / 1e9
        return DriverPainter(spec.camera(job.stream), seconds, spec.seed)
    return DrivePainter(build_world(spec), spec.mount(job.stream), spec.seed)
