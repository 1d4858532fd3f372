"""The service's log: its lines, its limits, and streams that take nothing."""

import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

import pytest

from cereal.clock import ManualClock
from modeld.frames.frame_log import EXTRA_LOST
from modeld.service import service_log
from modeld.service.log_format import MAX_MESSAGE, MOST, PERIOD_NS, entry_of
from modeld.service.service_log import CAPACITY, CLOSE_S, RESERVED, ServiceLog
from modeld.state.episodes import NS_PER_S, Episodes, Kind
from modeld.state.loop_state import LoopState
from tests.cereal.shared import largest_file
from tests.modeld.bench import Patch, eventually

logger = logging.getLogger("modeld.test")
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


class LogFile:
    """A file that takes the log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stream = path.open("w", encoding="utf-8")

    def log(self, **options: Any) -> ServiceLog:
        return ServiceLog(stream=self.stream, **options)

    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def lines(self) -> list[str]:
        return self.text().splitlines()

    def messages(self) -> list[str]:
        """Lines without time, level and logger."""
        return [line.partition(": ")[2] for line in self.lines()]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[LogFile]:
    made = LogFile(tmp_path / "log")
    yield made
    made.stream.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """The reading descriptor of a full pipe, and the stream that writes."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        os.set_blocking(writing, False)
        try:
            while os.write(writing, b"." * 4096):
                pass
        except BlockingIOError:
            pass
        os.set_blocking(writing, True)
        yield reading, stream
    os.close(reading)


def read_all(reading: int) -> str:
    os.set_blocking(reading, False)
    found = b""
    try:
        while data := os.read(reading, 65536):
            found += data
    except BlockingIOError:
        pass
    return found.decode()


def fail() -> None:
    raise KeyError("x\ny")


def log_failure() -> None:
    try:
        fail()
    except KeyError:
        logger.exception("unexpected error")


def test_a_record_is_one_line_with_time_level_logger_and_message(file: LogFile) -> None:
    with file.log() as log:
        logger.info("running at %d Hz", 20)
        logger.debug("not shown")
        logger.error("two\nlines, \x1b[31m")
        log_failure()
        logger.error("nobody raised it", exc_info=KeyError("y"))
    assert log.lost == 0
    first, second, third, fourth = file.lines()
    assert re.fullmatch(rf"{TIME} I modeld\.test: running at 20 Hz", first)
    assert re.fullmatch(rf"{TIME} E modeld\.test: two\\nlines, \\x1b\[31m", second)
    assert re.search(
        r": unexpected error: KeyError: 'x\\ny' "
        r"\(at test_service_log\.py:\d+ fail, test_service_log\.py:\d+ log_failure\)$",
        third,
    )
    assert re.search(r": nobody raised it: KeyError: 'y'", fourth)


@pytest.mark.parametrize(
    ("level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)]
)
def test_levels_decide_what_is_shown(file: LogFile, level: str, count: int) -> None:
    with file.log(level=level):
        for name in ("debug", "info", "warning", "error"):
            logger.log(service_log.LEVELS[name], name)
    assert file.messages() == ["debug", "info", "warning", "error"][4 - count :]


def test_tracebacks_are_shown_where_they_are_asked_for(file: LogFile) -> None:
    with file.log(tracebacks=True):
        log_failure()
    assert file.lines()[1] == "  Traceback (most recent call last):"
    assert file.lines()[-1] == "  KeyError: 'x\\ny'"


def test_json_lines_are_objects_with_the_exception_as_one_text(
    file: LogFile, monkeypatch: Patch
) -> None:
    # The test runner keeps what is logged, and cannot hand on what is no text.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    said = 'a "quoted" \N{GREEK SMALL LETTER ALPHA}\n\udc80'
    with file.log(format="json"):
        logger.warning("%s", said)
        log_failure()
    assert file.text().isascii()
    first, second = map(json.loads, file.lines())
    assert re.fullmatch(TIME, first.pop("time"))
    assert first == {"level": "warning", "logger": "modeld.test", "message": said}
    assert second["exception"].startswith("Traceback (most recent call last):\n")
    assert second["exception"].endswith("KeyError: 'x\\ny'")


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_journal_gets_priorities_and_no_time(
    form: str, file: LogFile, monkeypatch: Patch
) -> None:
    status = os.fstat(file.stream.fileno())
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    with file.log(format=form, level="debug"):
        for level in (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, 10):
            logger.log(level, "text")
    lines = file.lines()
    assert [line[:3] for line in lines] == ["<2>", "<3>", "<4>", "<6>", "<7>"]
    if form == "text":
        assert lines[1] == "<3>E modeld.test: text"
    else:
        assert json.loads(lines[1][3:])["message"] == "text"


def test_a_stream_that_was_redirected_is_not_the_journal_and_debug_is_not_limited(
    file: LogFile, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    with file.log(level="debug"):
        for number in range(3 * MOST):
            logger.debug("step %d", number)
    assert len(file.lines()) == 3 * MOST
    assert re.match(TIME, file.text())


class Odd:
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("text", "argument", "shown"),
    [
        ("%d frames", "no number", "%d frames (arguments do not fit: TypeError)"),
        ("%s", Odd(), "%s (arguments do not fit: RuntimeError)"),
        ("%s", "x" * MAX_MESSAGE, "x" * MAX_MESSAGE),
        ("%s", "x" * 10_000, "x" * MAX_MESSAGE + "... (10000 characters)"),
    ],
    ids=["type", "error", "long", "too long"],
)
def test_a_record_that_cannot_be_formatted_is_shown_as_far_as_it_can(
    text: str, argument: object, shown: str
) -> None:
    record = logging.LogRecord("x", logging.INFO, "file.py", 1, text, (argument,), None)
    assert entry_of(record).message == shown


def test_warnings_and_ended_threads_are_records(file: LogFile) -> None:
    with file.log(), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("take care", stacklevel=1)
        thread = threading.Thread(target=fail, name="loop")
        thread.start()
        thread.join()
    first, second = file.lines()
    assert re.search(r" W modeld\.service\.service_log: UserWarning: take care \(.*:\d+\)$", first)
    assert (
        " E modeld.service.service_log: thread 'loop' ended by an exception: KeyError: " in second
    )


def test_what_was_installed_before_is_restored() -> None:
    root, same = logging.getLogger(), StringIO()
    other, plain = logging.StreamHandler(StringIO()), logging.StreamHandler(same)
    hooks = warnings.showwarning, threading.excepthook, sys.unraisablehook
    before, level = [*root.handlers], root.level
    try:
        root.addHandler(other)
        root.addHandler(plain)
        with ServiceLog(stream=same):
            assert other in root.handlers
            assert plain not in root.handlers
            logger.info("once")
        assert root.handlers[len(before) :] == [other, plain]
    finally:
        root.handlers[:] = before
    assert root.level == level
    assert hooks == (warnings.showwarning, threading.excepthook, sys.unraisablehook)
    assert same.getvalue().count("once") == 1


def test_records_of_one_place_are_limited_and_counted(file: LogFile) -> None:
    clock = ManualClock(1)
    with file.log(clock=clock) as log:
        for number in range(MOST + 6):
            if number == MOST + 5:
                clock.advance_ns(PERIOD_NS)
            logger.error("fault %d", number)
            logger.error("another %d", 0)
        clock.advance_ns(PERIOD_NS // 2)
        logger.error("fault again")
    assert log.lost == 0
    faults = [line for line in file.messages() if line.startswith("fault")]
    assert faults[:MOST] == [f"fault {number}" for number in range(MOST)]
    assert faults[MOST:] == [f"fault {MOST + 5} (5 suppressed)", "fault again"]
    assert sum(line.startswith("another") for line in file.messages()) == MOST + 1


def test_a_fault_that_ended_leaves_its_last_record(file: LogFile) -> None:
    clock = ManualClock(1)
    with file.log(clock=clock):
        for number in range(MOST + 5):
            logger.error("fault %d", number)
        assert "suppressed" not in file.text()
        clock.advance_ns(PERIOD_NS)
        eventually(lambda: "(last of 5 suppressed)" in file.text())
        for number in range(MOST + 2):
            logger.error("next fault %d", number)
    assert file.messages()[MOST] == f"fault {MOST + 4} (last of 5 suppressed)"
    assert file.messages()[-1] == f"next fault {MOST + 1} (last of 2 suppressed)"


def test_outages_of_one_kind_leave_the_lines_of_others(file: LogFile) -> None:
    """More kinds than one place may write lines: what begins last is said, too."""
    clock = ManualClock(1)
    with file.log(clock=clock):
        episodes = Episodes(clock, logger, LoopState())
        for number in range(MOST + 5):
            kind = Kind(f"garbage {number}", over=f"end of {number}")
            episodes.happen(kind, f"service {number}: message rejected")
        episodes.happen(EXTRA_LOST, "extra camera lost")
        clock.advance_ns(2 * NS_PER_S)
        episodes.settle()
    lines = file.messages()
    assert len(lines) == 2 * (MOST + 6)
    last = f"service {MOST + 4}: message rejected"
    assert lines[MOST + 4 : MOST + 6] == [last, "extra camera lost"]
    assert lines[-1].startswith("extra camera resumed after ")


def flood(count: int, level: int = logging.DEBUG) -> None:
    for number in range(count):
        # Texts of their own, so that they are not limited.
        logger.log(level, f"record {number}")  # noqa: G004


def test_a_full_pipe_costs_the_caller_nothing_and_is_told_when_it_is_read(
    pipe: tuple[int, TextIO],
) -> None:
    reading, writing = pipe
    with ServiceLog(stream=writing, level="debug") as log:
        logger.debug("first")  # the writer holds this one, the queue the others
        eventually(log._writer._queue.empty)
        flood(CAPACITY)
        assert log.lost == RESERVED
        flood(CAPACITY, logging.ERROR)  # errors have room that others do not take
        assert log.lost == CAPACITY
        said = ""

        def told() -> bool:
            nonlocal said
            said += read_all(reading)
            return "log records lost" in said

        eventually(told)
        logger.info("goes on")
    lines = (said + read_all(reading)).lstrip(".").splitlines()
    assert lines[0].endswith("first")
    assert lines[CAPACITY - RESERVED].endswith(f" D modeld.test: record {CAPACITY - RESERVED - 1}")
    assert lines[CAPACITY].endswith(f" E modeld.test: record {RESERVED - 1}")
    assert f"{CAPACITY} log records lost" in lines[CAPACITY + 1]
    assert lines[-1].endswith("goes on")


@pytest.mark.slow
def test_the_end_waits_a_bounded_time_for_a_full_pipe(pipe: tuple[int, TextIO]) -> None:
    def stays(thread: threading.Thread) -> bool:
        thread.join(10.0)
        return thread.is_alive()

    start = time.monotonic()
    with ServiceLog(stream=pipe[1]):
        logger.error("nobody reads this")
    assert time.monotonic() - start < CLOSE_S + 5.0  # the bound, and a busy machine
    assert not [t for t in threading.enumerate() if t.name == "log" and stays(t)]


@pytest.mark.parametrize("what", ["no reader", "closed", "full"])
def test_a_stream_that_takes_nothing_loses_records_and_nothing_else(what: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone, Path("/dev/full").open("w", encoding="utf-8") as full:
        stream = full if what == "full" else gone
        with ServiceLog(stream=stream) as log:
            if what == "closed":
                # Its number is not used by others here: this process opens nothing meanwhile.
                stream.close()
            logger.error("nobody can read this")
            eventually(lambda: log.lost == 1)


STUCK = """
import logging
from modeld.service.service_log import ServiceLog
with ServiceLog():
    for n in range(5000): logging.getLogger('x').error(f'{n}' + 'x' * 100)
"""


def test_a_disk_that_has_room_again_is_written_in_whole_lines(file: LogFile) -> None:
    with file.log() as log:
        with largest_file(200):
            for number in range(MOST):
                logger.error("record %d %s", number, "x" * 20)
                logger.error("%s", number)
            eventually(lambda: log.lost)
        eventually(lambda: "log records lost" in file.text())
        logger.error("has room again")
    lines = file.lines()
    cut = [line for line in lines if not re.match(rf"{TIME} [EW] [\w.]+: .", line)]
    assert len(cut) <= 1, "only the line that was cut off"
    assert not any(re.search(f".{TIME}", line) for line in lines), "what comes then is a new line"
    assert sum("log records lost" in line for line in lines) == 1
    assert lines[-1].endswith("has room again")


@pytest.mark.slow
def test_a_process_ends_though_its_stderr_is_stuck(pipe: tuple[int, TextIO]) -> None:
    command = [sys.executable, "-c", STUCK]
    assert subprocess.run(command, stderr=pipe[1], check=False, timeout=60).returncode == 0


def test_records_from_a_signal_and_from_threads_do_not_block_each_other(file: LogFile) -> None:
    def work(number: int) -> None:
        for step in range(50):
            logger.debug("thread %d step %d", number, step)

    with file.log(level="debug") as log:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert log.lost == 0
    assert len(file.lines()) == 400
