"""Writes a rendered drive: its files in worker processes, each segment in full or not at all.

A segment is put together in a hidden directory beside its place and gets its name at the end.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cereal.log_writer import LogWriter
from cereal.segment_log import SegmentLogWriter
from modeld.constants import T_IDXS, X_IDXS
from runtime.files.whole_file import whole_file
from tools.errors import ToolError, UsageError
from tools.lib.given_data import write_npz
from tools.lib.processes import Crew, IsStopped, Send, open_crew
from tools.lib.terminal import Progress
from tools.render.hevc import Packet
from tools.render.messages import init_event, segment_messages
from tools.render.render_file import FILES, FileJob, build_world, render_file
from tools.render.spec import FRAME_NS, SMALL, DriveSpec
from tools.render.world import (
    EDGE_OFFSETS_M,
    LANE_WIDTH_M,
    LINE_OFFSETS_M,
    TICK_NS,
    TICKS_PER_S,
    CarState,
    World,
)
from tools.world.curves import Floats, sin_cos

# --- Renders files in several processes, or in this one where a drive is short ----------------
#
# Each process gets its share of the files at its start; it says when a picture is done, and what
# came of each file.

# How long is waited for a message at a time.
_POLL_S = 0.2
# Below this a process costs more to start than it saves.
_PICTURES_PER_PROCESS = 100
# What is sent when a picture is done; a file is sent as its path and its packets.
_PICTURE = "picture"
_GONE = (
    "make-drive: expected the rendering processes to finish, found one gone; is there enough "
    "memory? --workers 1 takes the least"
)


def choose_workers(jobs: Sequence[FileJob], most: int) -> int:
    """Return how many processes are worth their start, 1 to `most`."""
    pictures = sum(len(job.spec.delivered(job.stream, job.segment)) for job in jobs)
    return max(1, min(most, len(jobs), pictures // _PICTURES_PER_PROCESS))


@dataclass(slots=True)
class Workers:
    """What renders files; made by `open_workers`."""

    progress: Progress
    _crew: Crew | None = None
    _done: dict[Path, list[Packet]] = field(default_factory=dict)
    _count: int = 0

    def packets(self, job: FileJob) -> list[Packet]:
        """Return what came of a file; waits for it, or renders it here.

        Raises:
            ToolError: a process died.
            OSError: the file cannot be written.
        """
        if self._crew is None:
            return render_file(job, self._count_one)
        while job.path not in self._done:
            for message in self._crew.receive(_POLL_S):
                if message == _PICTURE:
                    self._count_one()
                else:
                    path, packets = message
                    self._done[path] = packets
        return self._done[job.path]

    def _count_one(self) -> None:
        self._count += 1
        self.progress(self._count)


@contextmanager
def open_workers(jobs: Sequence[FileJob], count: int, progress: Progress) -> Iterator[Workers]:
    """Start to render files, in order; at the end of the block the processes are gone.

    Args:
        jobs: the files.
        count: processes; 1 renders in this one, when a file is asked for.
        progress: called after each picture.
    """
    if count == 1:
        yield Workers(progress)
        return
    shares = [(list(jobs[number::count]),) for number in range(count)]
    with open_crew(_render, shares, ToolError(_GONE)) as crew:
        yield Workers(progress, crew)


def _render(jobs: list[FileJob], _is_stopped: IsStopped, send: Send) -> None:
    """Render files; the body of a worker process."""
    for job in jobs:
        send((job.path, render_file(job, lambda: send(_PICTURE))))


# --- The truth of each picture of a rendered segment, in the form of the model's own outputs --
#
# docs/formats/truth.md describes the file. Calibrated frame of the picture: x forward, y right, z
# down (m), origin in the camera at the start of the frame.

# The road ahead, from which distances are read off.
_AHEAD_M: Floats = np.arange(-6.0, 280.0, 1.0)


def segment_truth(spec: DriveSpec, world: World, segment: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of ``truth.npz``; see docs/formats/truth.md for their keys."""
    ids = spec.frame_ids(segment)
    states = [world.state(frame * FRAME_NS // TICK_NS) for frame in ids]
    columns: dict[str, NDArray[Any]] = {
        "frame_id": np.array(ids, np.int64),
        "sof_ns": np.array([spec.sof_ns("road", frame) for frame in ids], np.int64),
        "pose_m_rad": np.array([(s.x_m, s.y_m, s.heading_rad) for s in states]),
        "speed_mps": np.array([s.speed_mps for s in states]),
        "acceleration_mps2": np.array([s.acceleration_mps2 for s in states]),
        "curvature_1pm": np.array([s.curvature_1pm for s in states]),
        "blinker": np.array([s.blinker for s in states], np.int8),
        "lane_offset_m": np.array([s.offset_m for s in states]),
        "rpy_rad": np.array(spec.rpy_rad),
        "height_m": np.array(spec.height_m),
        "x_m": X_IDXS,
        "t_s": T_IDXS,
    }
    for stream in spec.streams:
        delivered = set(spec.delivered(stream, segment))
        name = "road" if stream == SMALL else stream
        columns[f"{name}_delivered"] = np.array([frame in delivered for frame in ids])
    lines = [_borders(world, state, _lines_beside(state)) for state in states]
    columns["lane_line_y_m"] = np.array(lines, np.float32)
    edges = [_borders(world, state, EDGE_OFFSETS_M) for state in states]
    columns["road_edge_y_m"] = np.array(edges, np.float32)
    columns["lead_xyv"] = np.array([_lead(world, state) for state in states])
    ticks = np.array([frame * FRAME_NS // TICK_NS for frame in ids])
    columns["path_xy_m"], columns["path_speed_mps"], columns["path_yaw_rad"] = _paths(world, ticks)
    return columns


def write_truth(path: Path, columns: dict[str, NDArray[Any]]) -> None:
    """Write the arrays.

    Raises:
        OSError: the file cannot be written.
    """
    with whole_file(path) as file:
        write_npz(file, columns, compress=True)


def _lines_beside(state: CarState) -> tuple[float, ...]:
    """Return the offsets of the model's four lines; NaN where there is none.

    Two to the left and two to the right of the lane in which the camera is.
    """
    lane = min(max(round(state.offset_m / LANE_WIDTH_M), -1), 1)
    known = (np.nan, *LINE_OFFSETS_M, np.nan)
    return known[lane + 1 : lane + 5]


def _borders(world: World, state: CarState, offsets_m: tuple[float, ...]) -> Floats:
    """Return how far right lines along the road are at the model's distances ahead, (n, 33)."""
    offsets = np.array(offsets_m)[:, None]
    x, y = _places(world, state, state.s_m + _AHEAD_M, np.where(np.isnan(offsets), 0, offsets))
    rows = [_at_distances(x_row, y_row) for x_row, y_row in zip(x, y, strict=True)]
    return np.where(np.isnan(offsets), np.nan, np.array(rows))


def _at_distances(x_m: Floats, y_m: Floats) -> Floats:
    """Return y at the model's distances; NaN beyond the place where a line turns back."""
    back = np.flatnonzero(np.diff(x_m) <= 0.0)
    last = int(back[0]) + 1 if back.size else x_m.size
    return np.asarray(np.interp(X_IDXS, x_m[:last], y_m[:last], right=np.nan))


def _places(world: World, state: CarState, s_m: Floats, offset_m: Floats) -> tuple[Floats, Floats]:
    """Return where points of the road are, as metres forward and right of the camera."""
    x, y, heading = world.road_points(s_m)
    sine, cosine = (float(part) for part in sin_cos(state.heading_rad))
    east, north = x - state.x_m, y - state.y_m
    forward, right = east * cosine + north * sine, north * cosine - east * sine
    turn, along = sin_cos(heading - state.heading_rad)
    return np.asarray(forward - offset_m * turn), np.asarray(right + offset_m * along)


def _lead(world: World, state: CarState) -> tuple[float, float, float]:
    """Return distance ahead, distance right and speed of the car ahead."""
    place = np.array([state.lead_s_m])
    x, y = _places(world, state, place, np.array([world.offset_at(state.lead_s_m)]))
    return float(x[0]), float(y[0]), state.lead_speed_mps


def _paths(
    world: World, ticks: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return where the camera will be at the model's times: (n, 33, 2), speeds, yaws (n, 33)."""
    track = world.track(int(ticks[0]), int(ticks[-1] + T_IDXS[-1] * TICKS_PER_S) + 2)
    at = (ticks - ticks[0])[:, None] + T_IDXS * TICKS_PER_S
    first = at.astype(np.int64)
    x, y, heading, speed = (
        column[first] + (column[first + 1] - column[first]) * (at - first) for column in track
    )
    sine, cosine = sin_cos(heading[:, :1])
    ahead, aside = x - x[:, :1], y - y[:, :1]
    path = np.stack([ahead * cosine + aside * sine, aside * cosine - ahead * sine], axis=2)
    yaw = heading - heading[:, :1]
    return path.astype(np.float32), speed.astype(np.float32), yaw.astype(np.float32)


def write_drive(spec: DriveSpec, directory: Path, workers: int, progress: Progress) -> list[Path]:
    """Render a drive.

    Args:
        spec: the drive.
        directory: gets one directory for each segment; made if missing.
        workers: processes that render, at most; a short drive takes fewer.
        progress: called with the number of pictures rendered so far.

    Returns:
        The segment directories, in order.

    Raises:
        UsageError: a segment is there already, or a file cannot be written; segments that were
            complete are kept.
        ToolError: a worker process died.
        LogError: a log cannot be written; likewise.
    """
    targets = [directory / f"{spec.route}--{number}" for number in range(spec.segments)]
    _check_targets(directory, targets)
    try:
        _write_segments(spec, directory, targets, workers, progress)
    except OSError as error:
        # That of a worker process, or of a file that was open, does not say of which file.
        raise UsageError(
            f"{directory}: expected to write a segment, found: {error.strerror or error}; free "
            "some disk space or name another directory"
        ) from error
    return targets


def _write_segments(
    spec: DriveSpec, directory: Path, targets: list[Path], workers: int, progress: Progress
) -> None:
    world = build_world(spec)
    with _hidden_directory(directory, spec.route) as hidden:
        files = [
            [
                FileJob(spec, stream, segment, hidden / f"{segment}-{FILES[stream]}")
                for stream in spec.streams
            ]
            for segment in range(spec.segments)
        ]
        jobs = [job for row in files for job in row]
        init = init_event(spec)
        with (
            open_workers(jobs, choose_workers(jobs, workers), progress) as pool,
            SegmentLogWriter(hidden, spec.route, init, open_sink=LogWriter) as logs,
        ):
            for segment, target in enumerate(targets):
                packets = {job.stream: pool.packets(job) for job in files[segment]}
                for message in segment_messages(spec, world, segment, packets):
                    logs.write(message.data)
                place = logs.directory
                if segment + 1 < spec.segments:
                    logs.rotate()
                else:
                    logs.close()
                write_truth(place / "truth.npz", segment_truth(spec, world, segment))
                if spec.is_small:
                    (place / "rlog.zst").unlink()
                for job in files[segment]:
                    job.path.rename(place / FILES[job.stream])
                place.rename(target)


def _check_targets(directory: Path, targets: list[Path]) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{directory}: cannot be made ({error.strerror}); name another directory"
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
    """Make a directory for unfinished segments; what is left in it at the end goes."""
    hidden = directory / f".{route}.{os.getpid()}.part"
    hidden.mkdir()
    try:
        yield hidden
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
