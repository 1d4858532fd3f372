"""One drive through the daemons, as fast as the device allows: the deterministic replay.

The drive is prefetched by a thread; everything else runs in the caller's thread. Two runs of one
drive and one artifact on one device give the same log, byte for byte; what was measured is in the
outcome. Called by ``modeld replay`` and ``modeld regress``.
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
# An error in the thread is raised at the caller's next call.

# Moments that wait to be written; more than a slow disk needs, and a few MiB.
DEPTH = 32


class LogThread:
    """Calls `write` for each event, in order, in a thread of its own.

    Use it as a context: the block ends when everything is written, and by an exception at once.

    `write`: takes the bytes of one event.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._pending: list[bytes] = []
        # Queues that Python implements in C: Ctrl-C between the lines of a lock written in Python
        # would leave it taken, and both threads waiting for ever. `_room` has a token for each
        # entry that may be appended.
        self._queue: SimpleQueue[Sequence[bytes] | None] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(DEPTH):
            self._room.put(None)
        self._error: BaseException | None = None
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)

    def record(self, data: bytes) -> None:
        """Take one event; it is handed over by the next `flush`."""
        self._pending.append(data)

    def flush(self) -> None:
        """Hand over what was recorded; waits where the thread is far behind.

        Raises:
            BaseException: what `write` raised of an earlier event.
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
            # After an error the queue is emptied all the same: nobody must wait for a place.
            if self._is_abandoned or self._error is not None:
                continue
            try:
                for data in events:
                    self._write(data)
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                self._error = error
                self._is_abandoned = True


# --- Digests of inputs and outputs: if inputs differ too, the fault is ahead of the program ---


class DigestingProgram(WrappedProgram):
    """Notes digests of each run.

    `program`: of either kind. `names`: inputs that it may have; and `OUTPUTS`, where those are to
    be noted.
    """

    def __init__(
        self, program: DrivingProgram | MonitoringProgram, names: tuple[str, ...] = INPUT_NAMES
    ) -> None:
        # Monitoring asks for no more than its protocol has.
        super().__init__(cast("DrivingProgram", program))
        self._names = names
        # CRC-32 by input of the last run; 0 for inputs that its entry does not take.
        self.crc = dict.fromkeys(names, 0)
        # Seconds that the digests of the last run took, which are within what the daemon measures
        # of the model.
        self.digest_s = 0.0

    def run(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Note the digests of the inputs, run, note that of the outputs."""
        start_ns = time.perf_counter_ns()
        seen: dict[int, int] = {}
        for name in self._names:
            array = inputs.get(name)
            if array is None:
                self.crc[name] = 0
                continue
            # With a single camera both frames are one array.
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


# Called after each moment with what the daemon did (None: it took no frame of it). The frames of
# the moment are the drive's: copy what is kept.
OnMoment = Callable[[Moment, StepResult | None], None]


@dataclass(frozen=True, slots=True)
class PlaybackOptions:
    """How a drive is played."""

    limit: int | None = None  # stop after this many moments; None: to the end of the drive
    digest_inputs: bool = False  # fill `FrameTable.input_crc`; costs some milliseconds a frame
    # Settings of the daemon; the cameras are the drive's.
    config: Config = field(default_factory=lambda: Config(demo=True))
    on_moment: OnMoment | None = None  # called after each moment


def play(
    drive: Drive,
    programs: Programs,
    record: Callable[[bytes], None],
    options: PlaybackOptions,
) -> tuple[FrameTable, float]:
    """Send a drive through the daemons.

    `drive`: an open drive. `programs`: for the drive's cameras (`check_fits`); reset before and
    after, so that nothing of one drive reaches another. `record`: takes the bytes of every event,
    recorded and new, in the order of their stamps. `options`: see there. The result is one row for
    each frame that the daemon took, likewise of monitoring, and the seconds from the first moment
    to the last message.

    Raises:
        ToolError: the drive is damaged; what precedes was recorded.
        ModeldError: the program does not fit the drive.
    """
    digests = options.digest_inputs
    driving = _Noted(programs.driving, INPUT_NAMES if digests else ())
    monitoring = _Noted(programs.monitoring, MONITORING_INPUT_NAMES if digests else ())
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


class _Noted:
    """A row for each frame that a daemon took.

    `program`: of the daemon; None: it does not run. `inputs`: whose digests are noted; empty: none.
    """

    def __init__(
        self, program: DrivingProgram | MonitoringProgram | None, inputs: tuple[str, ...]
    ) -> None:
        # What the daemon is to run in place of the program; None: the program itself.
        self.digesting: DigestingProgram | None = None
        if program is not None and inputs:
            # What others give differs from device to device in the last bits, and says nothing.
            if is_strict(program.metadata):
                inputs = (*inputs, OUTPUTS)
            self.digesting = DigestingProgram(program, inputs)
        self.rows = FrameRows(inputs)  # of the frames so far

    def note(self, moment: Moment, result: StepResult | MonitoringStep | None) -> None:
        """Append what the daemon did with the frame of a moment."""
        if result is None:
            return
        digesting = self.digesting
        digest_s = digesting.digest_s if digesting and result.published else 0.0
        crc = digesting.crc if digesting else {}
        self.rows.add(moment.index, result, result.execution_time_s - digest_s, crc)


def run_drive(
    drive: Drive, model: LoadedModel, log: Path, options: PlaybackOptions | None = None
) -> Outcome:
    """Send a drive through the daemons and keep the log, with its frame table beside it.

    Both files appear complete or not at all; a drive that cannot be read on leaves none, but for a
    video whose pictures change their size: of it there is what precedes.

    `drive`: an open drive. `model`: loaded; of driving, with monitoring beside it or not, or of
    monitoring alone. `log`: event log to write; the ending decides how it is compressed. The frame
    table is `frames_path(log)`. `options`: how it is played.

    Raises:
        PictureSizeError: the pictures change their size; the log has what precedes.
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
            # Before the log gets its name: a log is never without its frame table.
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
    """Play, with the log written by a thread; the time counts until all is written."""
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
    """Return the most memory that this process has occupied so far (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
