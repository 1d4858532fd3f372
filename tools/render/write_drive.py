"""Writes a rendered drive: its files in worker processes, each segment in full or not at all.

A segment is put together in a hidden directory beside its place and gets its name at the end.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from cereal.log_writer import LogWriter
from cereal.services import service
from tools.errors import ToolError, UsageError
from tools.render.hevc import Packet
from tools.render.messages import Stamped, init_event, segment_messages, sentinel_event
from tools.render.render_file import FILES, FileJob, build_world, render_file
from tools.render.spec import FRAME_NS, START_NS, DriveSpec
from tools.render.truth import segment_truth, write_truth
from tools.render.world import World

# How often progress is looked at.
_POLL_S = 0.2

Progress = Callable[[int], None]


def write_drive(spec: DriveSpec, directory: Path, workers: int, progress: Progress) -> list[Path]:
    """Render a drive.

    Args:
        spec: the drive.
        directory: gets one directory for each segment; made if missing.
        workers: processes that render.
        progress: called with the number of pictures rendered so far.

    Returns:
        The segment directories, in order.

    Raises:
        UsageError: a segment is there already, or the directory cannot be written.
        ToolError: a worker process died.
        OSError: a file cannot be written; segments that were complete are kept.
    """
    targets = [directory / f"{spec.route}--{number}" for number in range(spec.segments)]
    _check_targets(directory, targets)
    world = build_world(spec)
    with _parts(targets) as parts, _workers(workers) as pool:
        for segment, part in enumerate(parts):
            pool.submit(spec, segment, part)
        for segment, part in enumerate(parts):
            packets = pool.packets(segment, progress)
            _write_logs(spec, world, segment, part, packets)
            write_truth(part / "truth.npz", segment_truth(spec, world, segment))
            part.rename(targets[segment])
    return targets


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
def _parts(targets: list[Path]) -> Iterator[list[Path]]:
    """Make the hidden directories; what is left of them at the end goes."""
    parts = [target.with_name(f".{target.name}.{os.getpid()}.part") for target in targets]
    try:
        for part in parts:
            part.mkdir()
        yield parts
    finally:
        for part in parts:
            shutil.rmtree(part, ignore_errors=True)


def _write_logs(
    spec: DriveSpec, world: World, segment: int, part: Path, packets: dict[str, list[Packet]]
) -> None:
    """Write rlog.zst and qlog.zst of a segment."""
    messages = segment_messages(spec, world, segment, packets)
    ids = spec.frame_ids(segment)
    start_ns, end_ns = START_NS + ids[0] * FRAME_NS, START_NS + (ids[-1] + 1) * FRAME_NS
    head = [
        init_event(spec),
        sentinel_event("startOfSegment" if segment else "startOfRoute", start_ns),
    ]
    is_last = segment == spec.segments - 1
    tail = sentinel_event("endOfRoute" if is_last else "endOfSegment", end_ns)
    with LogWriter(part / "rlog.zst") as rlog, LogWriter(part / "qlog.zst") as qlog:
        for data in head:
            rlog.write(data)
            qlog.write(data)
        for message, is_small in _decimated(messages):
            rlog.write(message.data)
            if is_small:
                qlog.write(message.data)
        rlog.write(tail)
        qlog.write(tail)


def _decimated(messages: list[Stamped]) -> Iterator[tuple[Stamped, bool]]:
    """Yield each message with whether the small log takes it, too: every n-th of its service."""
    counts: dict[str, int] = {}
    for message in messages:
        every = service(message.service).decimation
        count = counts.get(message.service, 0)
        counts[message.service] = count + 1
        yield message, every is not None and count % every == 0


@dataclass(slots=True)
class _Workers:
    """Worker processes and what they have been given."""

    executor: ProcessPoolExecutor
    counter: Synchronized[int]
    _futures: dict[int, dict[str, Future[list[Packet]]]] = field(default_factory=dict)

    def submit(self, spec: DriveSpec, segment: int, part: Path) -> None:
        """Give out the files of a segment."""
        self._futures[segment] = {
            stream: self.executor.submit(
                _work, FileJob(spec, stream, segment, part / FILES[stream])
            )
            for stream in spec.streams
        }

    def packets(self, segment: int, progress: Progress) -> dict[str, list[Packet]]:
        """Wait for the files of a segment."""
        futures = self._futures[segment]
        pending = set(futures.values())
        while pending:
            _, pending = wait(pending, timeout=_POLL_S)
            progress(self.counter.value)
        try:
            return {stream: future.result() for stream, future in futures.items()}
        except BrokenPipeError as error:
            raise ToolError(
                "make-drive: expected the rendering processes to work, found one gone; is there "
                "enough memory?"
            ) from error


@contextmanager
def _workers(count: int) -> Iterator[_Workers]:
    # Not forked: a child of a process with threads may inherit a lock that nobody releases.
    context = multiprocessing.get_context("spawn")
    counter: Synchronized[int] = context.Value("q", 0)
    executor = ProcessPoolExecutor(
        count, mp_context=context, initializer=_begin_work, initargs=(counter,)
    )
    try:
        yield _Workers(executor, counter)
    except BaseException:
        # Nothing of what they still do is wanted.
        processes = list((executor._processes or {}).values())
        executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        raise
    executor.shutdown()


class _Progress:
    """The counter of this worker process, set once when it starts."""

    counter: Synchronized[int] | None = None


def _begin_work(counter: Synchronized[int]) -> None:
    # Ctrl-C reaches the whole group; the parent decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _Progress.counter = counter


def _work(job: FileJob) -> list[Packet]:
    counter = _Progress.counter
    assert counter is not None, "the initializer runs first"

    def count() -> None:
        with counter.get_lock():
            counter.value += 1

    return render_file(job, count)
