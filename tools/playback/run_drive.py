"""Plays one drive to the daemons as fast as the device allows: the deterministic replay.

A thread prefetches the drive and another one writes the log; everything else runs in the caller's
thread. Two runs of one drive and artifact on one device produce identical logs, byte for byte.
Measured times are in the outcome, not in the log. ``modeld replay`` and ``modeld regress`` use
this.
"""

from __future__ import annotations

import resource
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cereal.errors import LogError
from cereal.log_writer import LogWriter
from modeld.daemon import StepResult
from modeld.model.driving_model import DrivingProgram
from modeld.monitoring import MonitoringProgram, MonitoringStep
from modeld.service.config import Config
from runtime.format.manifest import is_strict
from tools.drives.drive import Drive, FirstPart, Moment
from tools.lib.wrapped_program import WrappedProgram
from tools.playback.model import LoadedModel, check_fits
from tools.playback.outcome import (
    INPUT_NAMES,
    MONITORING_INPUT_NAMES,
    OUTPUTS,
    FrameRows,
    FrameTable,
    Outcome,
    frames_path,
    save_frames,
)
from tools.playback.session import PlaybackSession, Programs
from tools.playback.threads import prefetch

# --- Writing the log: a thread compresses while the next frame is on the device ---------------
#
# An error in the thread is raised by the caller's next call.

# The maximum number of moments that wait to be written; more than a slow disk needs, in a few MiB.
DEPTH = 32


class LogThread:
    """Calls `write` for each event, in order, in its own thread.

    Use it as a context manager. The block ends when everything is written, or immediately after an
    exception.

    `write`: receives the bytes of one event.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._pending: list[bytes] = []
        # Only queues that Python implements in C are safe here. If Ctrl-C interrupted a lock
        # written in Python, the lock would stay taken and both threads would wait forever. `_room`
        # has a token for each entry that can be appended.
        self._queue: SimpleQueue[Sequence[bytes] | None] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(DEPTH):
            self._room.put(None)
        self._error: BaseException | None = None
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)

    def record(self, data: bytes) -> None:
        """Accept one event; the next `flush` passes it to the thread."""
        self._pending.append(data)

    def flush(self) -> None:
        """Pass the recorded events to the thread; wait if it is far behind.

        Raises:
            BaseException: the error that `write` raised for an earlier event.
        """
        self._check()
        if self._pending:
            self._room.get()
            pending, self._pending = self._pending, []
            self._queue.put(pending)

    def __enter__(self) -> LogThread:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()
        else:
            self._is_abandoned = True
        self._queue.put(None)
        self._thread.join()
        if kind is None:
            self._check()

    def _check(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        while (events := self._queue.get()) is not None:
            self._room.put(None)
            # After an error the queue is still emptied, so that nobody waits for room.
            if self._is_abandoned or self._error is not None:
                continue
            try:
                for data in events:
                    self._write(data)
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                self._error = error
                self._is_abandoned = True


# --- Digests of inputs and outputs: if inputs differ too, the fault is before the program -----


class DigestingProgram(WrappedProgram):
    """Computes digests of the inputs, and optionally of the outputs, of each run.

    `program`: a driving or monitoring program. `names`: names of inputs that it may have, and
    `OUTPUTS` for a digest of the outputs.
    """

    def __init__(
        self, program: DrivingProgram | MonitoringProgram, names: tuple[str, ...] = INPUT_NAMES
    ) -> None:
        # The wrapper uses only what the monitoring protocol has.
        super().__init__(cast("DrivingProgram", program))
        self._names = names
        # CRC-32 of each input of the last run; 0 for inputs that its entry does not have.
        self.crc = dict.fromkeys(names, 0)
        # Seconds that the last run's digests took. The daemon's measured time of the model includes
        # them.
        self.digest_s = 0.0

    def run(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Run the program and compute the digests."""
        start_ns = time.perf_counter_ns()
        seen: dict[int, int] = {}
        for name in self._names:
            array = inputs.get(name)
            if array is None:
                self.crc[name] = 0
                continue
            # With a single camera, both frames are the same array.
            place = array.ctypes.data
            if place not in seen:
                seen[place] = zlib.crc32(array.data)
            self.crc[name] = seen[place]
        before_ns = time.perf_counter_ns()
        results = super().run(inputs, entry)
        after_ns = time.perf_counter_ns()
        if OUTPUTS in self.crc:
            crc = 0
            for name in sorted(results):
                crc = zlib.crc32(np.asarray(results[name], order="C").data, crc)
            self.crc[OUTPUTS] = crc
        self.digest_s = (before_ns - start_ns + time.perf_counter_ns() - after_ns) * 1e-9
        return results


# Called after each moment with the daemon's result, or None if it processed no frame. The drive
# reuses the moment's frames, so copy those to keep.
OnMoment = Callable[[Moment, StepResult | None], None]


@dataclass(frozen=True, slots=True)
class PlaybackOptions:
    """Options for playing a drive."""

    limit: int | None = None  # number of moments to play; None for the whole drive
    # whether to fill `FrameTable.input_crc`; costs some milliseconds per frame
    digest_inputs: bool = False
    # Settings of the daemon; the cameras are those of the drive.
    config: Config = field(default_factory=lambda: Config(demo=True))
    on_moment: OnMoment | None = None  # called after each moment


def play(
    drive: Drive,
    programs: Programs,
    record: Callable[[bytes], None],
    options: PlaybackOptions,
) -> tuple[FrameTable, float]:
    """Play a drive to the daemons.

    `drive`: an open drive. `programs`: programs that fit the drive's cameras (`check_fits`). They
    are reset before and after, so that no state passes from one drive to another. `record`:
    receives the bytes of every event, recorded and new, in the order of their stamps. Returns a
    table with one row for each processed frame, and the seconds from the first moment to the last
    message.

    Raises:
        ToolError: the drive is damaged; everything before the damage was recorded.
        ModeldError: the program does not fit the drive.
    """
    digests = options.digest_inputs
    driving = _RowCollector(programs.driving, INPUT_NAMES if digests else ())
    monitoring = _RowCollector(programs.monitoring, MONITORING_INPUT_NAMES if digests else ())
    watched = Programs(
        driving.digesting or programs.driving, monitoring.digesting or programs.monitoring
    )
    session = PlaybackSession(options.config, watched, drive.info, record)
    session.warm_up()
    start_ns = time.perf_counter_ns()
    try:
        with prefetch(drive) as moments:
            for played, moment in enumerate(moments, 1):
                result = session.step(moment)
                driving.note(moment, result)
                monitoring.note(moment, session.monitored)
                if options.on_moment is not None:
                    options.on_moment(moment, result)
                if played == options.limit:
                    break
        session.finish()
    finally:
        if programs.driving is not None:
            programs.driving.reset()
        session.close()
    driver = None if programs.monitoring is None else monitoring.rows.table()
    return driving.rows.table(driver), (time.perf_counter_ns() - start_ns) * 1e-9


class _RowCollector:
    """Collects a row for each frame that a daemon processed.

    `program`: the daemon's program, or None if it does not run. `inputs`: names of the inputs whose
    digests are recorded; empty for none.
    """

    def __init__(
        self, program: DrivingProgram | MonitoringProgram | None, inputs: tuple[str, ...]
    ) -> None:
        # The program that the daemon runs instead; None to run the original.
        self.digesting: DigestingProgram | None = None
        if program is not None and inputs:
            # Without strict numerics, outputs differ between devices in the last bits.
            if is_strict(program.metadata):
                inputs = (*inputs, OUTPUTS)
            self.digesting = DigestingProgram(program, inputs)
        self.rows = FrameRows(inputs)  # rows of the frames so far

    def note(self, moment: Moment, result: StepResult | MonitoringStep | None) -> None:
        """Append the daemon's result for the frame of a moment."""
        if result is None:
            return
        digesting = self.digesting
        digest_s = digesting.digest_s if digesting and result.published else 0.0
        crc = digesting.crc if digesting else {}
        self.rows.add(moment.index, result, result.execution_time_s - digest_s, crc)


def run_drive(
    drive: Drive, model: LoadedModel, log: Path, options: PlaybackOptions | None = None
) -> Outcome:
    """Play a drive to the daemons and save the log, with its frame table next to it.

    Both files appear complete or not at all. If the drive cannot be read to its end, there are no
    files. The exception is a video whose pictures change their size: the log then has everything
    before the change.

    `drive`: an open drive. `model`: a driving model, with or without monitoring, or a monitoring
    model. `log`: path of the event log; its suffix selects the compression. The frame table is
    `frames_path(log)`. `options`: how to play it.

    Raises:
        PictureSizeError: the pictures change their size; the log ends before the change.
        ToolError: the drive is damaged, or the program does not fit it.
        LogError: the log cannot be written.
        ModeldError: the program does not fit the drive.
    """
    for one in model.parts:
        check_fits(one.path, one.artifact, drive.info)
    table = frames_path(log)
    part = FirstPart(drive)
    try:
        with LogWriter(log) as writer:
            frames, wall_s = _play_into(writer, part, model, options or PlaybackOptions())
            # Saved before the log gets its name, so that a log always has its frame table.
            save_frames(table, frames)
    except LogError:
        table.unlink(missing_ok=True)
        raise
    part.check()
    return Outcome(
        drive=drive.info,
        artifact_sha256=model.artifact.sha256,
        device=model.program.stats.device,
        log=log,
        frames=frames,
        wall_s=wall_s,
        peak_rss_bytes=peak_rss_bytes(),
    )


def _play_into(
    writer: LogWriter, drive: Drive, model: LoadedModel, options: PlaybackOptions
) -> tuple[FrameTable, float]:
    """Play with a thread that writes the log; the time includes writing all of it."""
    with LogThread(writer.write) as log:

        def on_moment(moment: Moment, result: StepResult | None) -> None:
            log.flush()
            if options.on_moment is not None:
                options.on_moment(moment, result)

        frames, wall_s = play(
            drive, model.programs, log.record, replace(options, on_moment=on_moment)
        )
        start_ns = time.perf_counter_ns()
    return frames, wall_s + (time.perf_counter_ns() - start_ns) * 1e-9


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this process so far (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
