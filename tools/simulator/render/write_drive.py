"""Writes a rendered drive and its ground truth; a segment is written completely or not at all.

Worker processes write the files of a segment into a hidden directory in the output directory. The
finished segment is then renamed to its final name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cereal.log_writer import LogWriter
from cereal.segment_log import SegmentLogWriter
from modeld.constants import T_IDXS, X_IDXS
from runtime.files.user_file import whole_file
from tools.errors import UsageError
from tools.lib.given_data import write_npz
from tools.lib.terminal import Progress
from tools.simulator.render.messages import init_event, segment_messages
from tools.simulator.render.picture_files import (
    DriverPainter,
    Packet,
    encode_file,
    encode_small,
    open_workers,
)
from tools.simulator.render.script import (
    TICK_NS,
    DriveState,
    ScriptedDrive,
    recorded_script,
    seeded_script,
)
from tools.simulator.render.spec import FRAME_NS, SMALL, DriveSpec
from tools.simulator.world.car import Body
from tools.simulator.world.curves import Floats
from tools.simulator.world.painting.backdrop import Picture
from tools.simulator.world.painting.painter import Painter
from tools.simulator.world.truth import borders_beside
from tools.simulator.world.world import World

FILES = {
    "road": "fcamera.hevc",
    "wide": "ecamera.hevc",
    "driver": "dcamera.hevc",
    SMALL: "qcamera.ts",
}
# With fewer pictures per process, starting a process costs more than it saves.
_PICTURES_PER_PROCESS = 100
_GONE = (
    "make-drive: expected the rendering processes to finish, found one dead; is there enough "
    "memory? --workers 1 uses the least"
)


class CameraFile(NamedTuple):
    """One camera's video file of one segment."""

    path: Path
    spec: DriveSpec
    drive: ScriptedDrive
    stream: str
    segment: int

    @property
    def frame_ids(self) -> list[int]:
        """The ids of the frames that the camera delivered."""
        return self.spec.delivered(self.stream, self.segment)

    def render(self, count: Callable[[], None]) -> list[Packet]:
        """Render and encode the frames, as `PictureFile` specifies."""
        spec, stream = self.spec, self.stream
        if stream == SMALL:
            ends_ns = [spec.sof_ns(stream, one) + spec.readout_ns for one in self.frame_ids]
            return encode_small(self.path, self._pictures(count), ends_ns)
        return encode_file(self.path, spec.camera(stream), self._pictures(count))

    def _pictures(self, count: Callable[[], None]) -> Iterator[Picture]:
        spec = self.spec
        if self.stream == "driver":
            paint = DriverPainter(spec.camera(self.stream), spec.seconds, spec.seed).paint
        else:
            painter = Painter(self.drive.world, spec.mount(self.stream))

            def paint(tick: int) -> Picture:
                state = self.drive.state_at(tick)
                return painter.paint(state.body, (state.lead,), tick)

        for frame_id in self.frame_ids:
            yield paint(frame_id * FRAME_NS // TICK_NS)
            count()


def choose_workers(files: Sequence[CameraFile], most: int) -> int:
    """Return the number of worker processes that is worth its cost, 1 to `most`."""
    pictures = sum(len(file.frame_ids) for file in files)
    return max(1, min(most, len(files), pictures // _PICTURES_PER_PROCESS))


# --- Ground truth of a segment; docs/formats/truth.md describes the file -------------------------


def segment_truth(spec: DriveSpec, drive: ScriptedDrive, segment: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of ``truth.npz``."""
    ids = spec.frame_ids(segment)
    ticks = [frame * FRAME_NS // TICK_NS for frame in ids]
    states = [drive.state_at(tick) for tick in ticks]
    bodies = [state.body for state in states]
    world = drive.world
    columns: dict[str, NDArray[Any]] = {
        "frame_id": np.array(ids, np.int64),
        "sof_ns": np.array([spec.sof_ns("road", frame) for frame in ids], np.int64),
        "pose_m_rad": np.array([(one.x_m, one.y_m, one.heading_rad) for one in bodies]),
        "speed_mps": np.array([one.speed_mps for one in bodies]),
        "acceleration_mps2": np.array([one.acceleration_mps2 for one in bodies]),
        "curvature_1pm": np.array([one.curvature_1pm for one in bodies]),
        "blinker": np.array([state.blinker for state in states], np.int8),
        "lane_offset_m": np.array([one.offset_m for one in bodies]),
        "rpy_rad": np.array(spec.rpy_rad),
        "height_m": np.array(spec.height_m),
        "x_m": X_IDXS,
        "t_s": T_IDXS,
        "lead_xyv": np.array([_lead(world, state) for state in states]),
    }
    for stream in spec.streams:
        delivered = set(spec.delivered(stream, segment))
        name = "road" if stream == SMALL else stream
        columns[f"{name}_delivered"] = np.array([frame in delivered for frame in ids])
    borders = [np.concatenate(borders_beside(world, one, spec.height_m)) for one in bodies]
    y, z = np.moveaxis(np.array(borders, np.float32), 3, 0)
    columns["lane_line_y_m"], columns["road_edge_y_m"] = y[:, :4], y[:, 4:]
    columns["lane_line_z_m"], columns["road_edge_z_m"] = z[:, :4], z[:, 4:]
    paths = [_future_path(drive, *row) for row in zip(ticks, bodies, strict=True)]
    path = np.array(paths, np.float32)
    columns["path_xy_m"], columns["path_z_m"] = path[..., :2], path[..., 2]
    columns["path_speed_mps"], columns["path_yaw_rad"] = path[..., 3], path[..., 4]
    return columns


def _lead(world: World, state: DriveState) -> tuple[float, float, float]:
    """Return distance ahead, distance to the right and speed of the lead car."""
    lead = state.lead
    x, y, _ = state.body.seen(*world.road.places(lead.s_m, lead.offset_m))
    return float(x), float(y), lead.speed_mps


def _future_path(drive: ScriptedDrive, tick: int, body: Body) -> Floats:
    """Return the car's future x, y, z, speed and yaw at the model's times, (33, 5)."""
    x, y, z, heading, speed = drive.ahead(tick, T_IDXS)
    return np.stack([*body.seen(x, y, z), speed, heading - body.heading_rad], axis=1)


def write_truth(path: Path, columns: dict[str, NDArray[Any]]) -> None:
    """Write the arrays of ``truth.npz``.

    Raises:
        OSError: the file cannot be written.
    """
    with whole_file(path) as file:
        write_npz(file, columns, compress=True)


def write_drive(spec: DriveSpec, directory: Path, workers: int, progress: Progress) -> list[Path]:
    """Render a drive.

    Args:
        spec: the drive.
        directory: output directory of the segments; created if missing.
        workers: the most worker processes; a short drive uses fewer.
        progress: called with the number of pictures rendered so far.

    Returns:
        The segment directories, in order.

    Raises:
        UsageError: a segment exists already, or a file cannot be written.
        ToolError: a worker process died.
        LogError: a log cannot be written.

    Segments that were complete before an error are kept.
    """
    targets = [directory / f"{spec.route}--{number}" for number in range(spec.segments)]
    _check_targets(directory, targets)
    try:
        _write_segments(spec, directory, targets, workers, progress)
    except OSError as error:
        # The error of a worker process or of an open file does not contain a file name.
        raise UsageError(
            f"{directory}: expected to write a segment, found: {error.strerror or error}; free "
            "some disk space or name another directory"
        ) from error
    return targets


def _write_segments(
    spec: DriveSpec, directory: Path, targets: list[Path], workers: int, progress: Progress
) -> None:
    drive = scripted_drive(spec)
    with _hidden_directory(directory, spec.route) as hidden:
        files = [
            [
                CameraFile(hidden / f"{segment}-{FILES[stream]}", spec, drive, stream, segment)
                for stream in spec.streams
            ]
            for segment in range(spec.segments)
        ]
        every = [file for row in files for file in row]
        init = init_event(spec)
        with (
            open_workers(every, choose_workers(every, workers), progress, _GONE) as pool,
            SegmentLogWriter(hidden, spec.route, init, open_sink=LogWriter) as logs,
        ):
            for segment, target in enumerate(targets):
                packets = {file.stream: pool.packets(file) for file in files[segment]}
                for message in segment_messages(spec, drive, segment, packets):
                    logs.write(message.data)
                place = logs.directory
                if segment + 1 < spec.segments:
                    logs.rotate()
                else:
                    logs.close()
                write_truth(place / "truth.npz", segment_truth(spec, drive, segment))
                if spec.is_small:
                    (place / "rlog.zst").unlink()
                for file in files[segment]:
                    file.path.rename(place / FILES[file.stream])
                place.rename(target)


def scripted_drive(spec: DriveSpec) -> ScriptedDrive:
    """Return the scripted drive of a specification.

    Raises:
        ToolError: the telemetry cannot be used.
    """
    if spec.telemetry is not None:
        return ScriptedDrive(recorded_script(spec.telemetry, spec.seed, spec.frames)[0])
    return ScriptedDrive(seeded_script(spec.seed, spec.seconds))


def _check_targets(directory: Path, targets: list[Path]) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{directory}: cannot be created ({error.strerror}); name another directory"
        ) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UsageError(f"{directory}: expected a directory that can be written; name another")
    for target in targets:
        if target.exists():
            raise UsageError(
                f"{target}: expected no such segment yet, found one; remove it or name another "
                "directory"
            )


@contextmanager
def _hidden_directory(directory: Path, route: str) -> Iterator[Path]:
    """Create a directory for unfinished segments; remove it with its content at the end."""
    hidden = directory / f".{route}.{os.getpid()}.part"
    hidden.mkdir()
    try:
        yield hidden
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
