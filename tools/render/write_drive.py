"""Writes a rendered drive: its files in worker processes, each segment in full or not at all.

A segment is put together in a hidden directory beside its place and gets its name at the end.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cereal.log_writer import LogWriter
from cereal.segment_log import SegmentLogWriter
from tools.errors import UsageError
from tools.lib.progress_bar import Progress
from tools.render.messages import init_event, segment_messages
from tools.render.render_file import FILES, FileJob, build_world
from tools.render.spec import DriveSpec
from tools.render.truth import segment_truth, write_truth
from tools.render.workers import choose_workers, open_workers


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
