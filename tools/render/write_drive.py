"""Writes a rendered drive: its files in worker processes, each segment in full or not at all.

A segment is put together in a hidden directory beside its place and gets its name at the end.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from cereal.log_writer import LogWriter
from cereal.segment_log import SegmentLogWriter
from tools.errors import ToolError, UsageError
from tools.render.hevc import Packet
from tools.render.messages import init_event, segment_messages
from tools.render.render_file import FILES, FileJob, build_world, render_file
from tools.render.spec import DriveSpec
from tools.render.truth import segment_truth, write_truth

# How often progress is looked at.
_POLL_S = 0.2
# A process that was told to end has ended by then.
_END_S = 5.0

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
        LogError: a log cannot be written; segments that were complete are kept.
        OSError: the same of another file.
    """
    targets = [directory / f"{spec.route}--{number}" for number in range(spec.segments)]
    _check_targets(directory, targets)
    world = build_world(spec)
    with _hidden_directory(directory, spec.route) as hidden, _workers(workers) as pool:
        with _signals_later():
            for segment in range(spec.segments):
                pool.submit(spec, segment, hidden)
        with SegmentLogWriter(hidden, spec.route, init_event(spec), open_sink=LogWriter) as logs:
            for segment, target in enumerate(targets):
                packets = pool.packets(segment, progress)
                for message in segment_messages(spec, world, segment, packets):
                    logs.write(message.data)
                place = logs.directory
                if segment + 1 < spec.segments:
                    logs.rotate()
                else:
                    logs.close()
                write_truth(place / "truth.npz", segment_truth(spec, world, segment))
                for stream in spec.streams:
                    _file(hidden, stream, segment).rename(place / FILES[stream])
                place.rename(target)
    return targets


def _file(hidden: Path, stream: str, segment: int) -> Path:
    """Return where a camera's file is rendered."""
    return hidden / f"{segment}-{FILES[stream]}"


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


@contextmanager
def _signals_later() -> Iterator[None]:
    """Hold Ctrl-C back; processes started meanwhile never see it, their parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(slots=True)
class _Workers:
    """Worker processes and what they have been given."""

    executor: ProcessPoolExecutor
    counter: Synchronized[int]
    _futures: dict[int, dict[str, Future[list[Packet]]]] = field(default_factory=dict)

    def submit(self, spec: DriveSpec, segment: int, hidden: Path) -> None:
        """Give out the files of a segment."""
        self._futures[segment] = {
            stream: self.executor.submit(
                _work, FileJob(spec, stream, segment, _file(hidden, stream, segment))
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
        except BrokenExecutor as error:
            raise ToolError(
                "make-drive: expected the rendering processes to work, found one gone; is there "
                "enough memory?"
            ) from error


@contextmanager
def _workers(count: int) -> Iterator[_Workers]:
    # Not forked: a child of a process with threads may inherit a lock that nobody releases.
    context = multiprocessing.get_context("spawn")
    counter: Synchronized[int] = context.Value("q", 0)
    others = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(
        count, mp_context=context, initializer=_begin_work, initargs=(counter,)
    )
    try:
        yield _Workers(executor, counter)
    except BaseException:
        # Nothing of what they still do is wanted; they end before their directory goes.
        executor.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
            process.join(_END_S)
        raise
    executor.shutdown()


class _Progress:
    """The counter of this worker process, set once when it starts."""

    counter: Synchronized[int] | None = None


def _begin_work(counter: Synchronized[int]) -> None:
    _Progress.counter = counter


def _work(job: FileJob) -> list[Packet]:
    counter = _Progress.counter
    assert counter is not None, "the initializer runs first"

    def count() -> None:
        with counter.get_lock():
            counter.value += 1

    return render_file(job, count)
