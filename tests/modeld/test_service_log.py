"""The service's log: its lines, its limits, and streams that take nothing."""

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import TextIO

import pytest

from cereal.clock import ManualClock
from modeld import service_log
from modeld.episodes import NS_PER_S, Episodes, Kind
from modeld.log_format import MAX_MESSAGE, entry_of
from modeld.log_limit import MOST, PERIOD_NS
from modeld.loop_state import LoopState
from modeld.service_log import CAPACITY, CLOSE_S, RESERVED, ServiceLog
from modeld.sync_log import EXTRA_LOST

logger = logging.getLogger("modeld.test")

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def stream(path: Path) -> Iterator[TextIO]:
    with path.open("w", encoding="utf-8") as file:
        yield file


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """The reading descriptor of a pipe, and the stream that writes."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file:
        yield reading, file
    os.close(reading)


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.01)


def fill(file: TextIO) -> None:
    """Write into a pipe that nobody reads until it takes no more."""
    os.set_blocking(file.fileno(), False)
    try:
        while os.write(file.fileno(), b"." * 4096):
            pass
    except BlockingIOError:
        pass
    os.set_blocking(file.fileno(), True)


def read_all(reading: int) -> str:
    os.set_blocking(reading, False)
    found = b""
    try:
        while data := os.read(reading, 65536):
            found += data
    except BlockingIOError:
        pass
    return found.decode()


# --- lines ------------------------------------------------------------------------------------


def test_a_record_is_one_line_with_time_level_logger_and_message(
    stream: TextIO, path: Path
) -> None:
    with ServiceLog(stream=stream) as log:
        logger.info("running at %d Hz", 20)
        logger.debug("not shown")
        logger.error("two\nlines, \x1b[31m")
    assert log.lost == 0
    first, second = path.read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(rf"{TIME} I modeld\.test: running at 20 Hz", first)
    assert re.fullmatch(rf"{TIME} E modeld\.test: two\\nlines, \\x1b\[31m", second)


def test_levels_decide_what_is_shown(stream: TextIO, path: Path) -> None:
    shown = {}
    for level in ("debug", "info", "warning", "error"):
        stream.truncate(0)
        with ServiceLog(stream=stream, level=level):
            for name in ("debug", "info", "warning", "error"):
                logger.log(service_log.LEVELS[name], name)
        shown[level] = len(path.read_text(encoding="utf-8").replace("\0", "").splitlines())
    assert shown == {"debug": 4, "info": 3, "warning": 2, "error": 1}


def fail() -> None:
    raise KeyError("x\ny")


def log_failure() -> None:
    try:
        fail()
    except KeyError:
        logger.exception("unexpected error")


def test_an_exception_is_one_line_of_text_with_its_calls(stream: TextIO, path: Path) -> None:
    with ServiceLog(stream=stream, level="debug"):
        log_failure()
    (line,) = path.read_text(encoding="utf-8").splitlines()
    assert re.search(
        r": unexpected error: KeyError: 'x\\ny' "
        r"\(at test_service_log\.py:\d+ fail, test_service_log\.py:\d+ log_failure\)$",
        line,
    )


def test_tracebacks_are_shown_where_they_are_asked_for(stream: TextIO, path: Path) -> None:
    with ServiceLog(stream=stream, tracebacks=True):
        log_failure()
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[1] == "  Traceback (most recent call last):"
    assert lines[-1] == "  KeyError: 'x\\ny'"


def test_json_lines_are_objects_with_the_exception_as_one_text(
    stream: TextIO, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The test runner keeps what is logged, and cannot hand on what is no text.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with ServiceLog(stream=stream, format="json"):
        logger.warning('a "quoted" %s', "\N{GREEK SMALL LETTER ALPHA}\n\udc80")
        log_failure()
    first, second = map(json.loads, path.read_text(encoding="ascii").splitlines())
    assert re.fullmatch(TIME, first.pop("time"))
    assert first == {
        "level": "warning",
        "logger": "modeld.test",
        "message": 'a "quoted" \N{GREEK SMALL LETTER ALPHA}\n\udc80',
    }
    assert second["exception"].startswith("Traceback (most recent call last):\n")
    assert second["exception"].endswith("KeyError: 'x\\ny'")


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_journal_gets_priorities_and_no_time(
    form: str, stream: TextIO, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.fstat(stream.fileno())
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    with ServiceLog(stream=stream, format=form, level="debug"):
        for level in (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, 10):
            logger.log(level, "text")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line[:3] for line in lines] == ["<2>", "<3>", "<4>", "<6>", "<7>"]
    if form == "text":
        assert lines[1] == "<3>E modeld.test: text"
    else:
        assert json.loads(lines[1][3:])["message"] == "text"


def test_a_stream_that_was_redirected_is_not_the_journal(
    stream: TextIO, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    with ServiceLog(stream=stream):
        logger.info("text")
    assert re.match(TIME, path.read_text(encoding="utf-8"))


def test_a_record_that_cannot_be_formatted_is_shown_as_far_as_it_can() -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError

    def message(text: str, argument: object) -> str:
        record = logging.LogRecord("x", logging.INFO, "file.py", 1, text, (argument,), None)
        return entry_of(record).message

    assert message("%d frames", "no number") == "%d frames (arguments do not fit: TypeError)"
    assert message("%s", Odd()) == "%s (arguments do not fit: RuntimeError)"
    assert message("%s", "x" * 10_000) == "x" * MAX_MESSAGE + "... (10000 characters)"


def test_warnings_and_ended_threads_are_records(stream: TextIO, path: Path) -> None:
    with ServiceLog(stream=stream), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("take care", stacklevel=1)
        thread = threading.Thread(target=fail, name="loop")
        thread.start()
        thread.join()
    first, second = path.read_text(encoding="utf-8").splitlines()
    assert re.search(r" W modeld\.service_log: UserWarning: take care \(.*:\d+\)$", first)
    assert " E modeld.service_log: thread 'loop' ended by an exception: KeyError: " in second


def test_what_was_installed_before_is_restored() -> None:
    root = logging.getLogger()
    other = logging.StreamHandler(StringIO())
    same = StringIO()
    plain = logging.StreamHandler(same)
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


# --- limits -----------------------------------------------------------------------------------


def test_records_of_one_place_are_limited_and_counted(stream: TextIO, path: Path) -> None:
    clock = ManualClock(1)
    with ServiceLog(stream=stream, clock=clock) as log:
        for number in range(MOST + 6):
            if number == MOST + 5:
                clock.advance_ns(PERIOD_NS)
            logger.error("fault %d", number)
            logger.error("another %d", 0)
        clock.advance_ns(PERIOD_NS // 2)
        logger.error("fault again")
    assert log.lost == 0
    lines = [line.partition(": ")[2] for line in path.read_text(encoding="utf-8").splitlines()]
    faults = [line for line in lines if line.startswith("fault")]
    assert faults[:MOST] == [f"fault {number}" for number in range(MOST)]
    assert faults[MOST:] == [f"fault {MOST + 5} (5 suppressed)", "fault again"]
    assert sum(line.startswith("another") for line in lines) == MOST + 1


def test_a_fault_that_ended_leaves_its_last_record(stream: TextIO, path: Path) -> None:
    clock = ManualClock(1)
    with ServiceLog(stream=stream, clock=clock):
        for number in range(MOST + 5):
            logger.error("fault %d", number)
        assert "suppressed" not in path.read_text(encoding="utf-8")
        clock.advance_ns(PERIOD_NS)
        eventually(lambda: "(last of 5 suppressed)" in path.read_text(encoding="utf-8"))
        for number in range(MOST + 2):
            logger.error("next fault %d", number)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[MOST].endswith(f": fault {MOST + 4} (last of 5 suppressed)")
    assert lines[-1].endswith(f": next fault {MOST + 1} (last of 2 suppressed)")


def test_outages_of_one_kind_leave_the_lines_of_others(stream: TextIO, path: Path) -> None:
    """More kinds than one place may write lines: what begins last is said, too."""
    clock = ManualClock(1)
    with ServiceLog(stream=stream, clock=clock):
        episodes = Episodes(clock, logger, LoopState())
        for number in range(MOST + 5):
            kind = Kind(f"garbage {number}", over=f"end of {number}")
            episodes.happen(kind, f"service {number}: message rejected")
        episodes.happen(EXTRA_LOST, "extra camera lost")
        clock.advance_ns(2 * NS_PER_S)
        episodes.settle()
    lines = [line.partition(": ")[2] for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 2 * (MOST + 6)
    assert lines[MOST + 4 : MOST + 6] == [
        f"service {MOST + 4}: message rejected",
        "extra camera lost",
    ]
    assert lines[-1].startswith("extra camera is back after ")


def test_debug_records_are_not_limited(stream: TextIO, path: Path) -> None:
    with ServiceLog(stream=stream, level="debug"):
        for number in range(3 * MOST):
            logger.debug("step %d", number)
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3 * MOST


# --- streams that take nothing ----------------------------------------------------------------


def flood(count: int, level: int = logging.DEBUG) -> None:
    for number in range(count):
        # Texts of their own, so that they are not limited.
        logger.log(level, f"record {number}")  # noqa: G004


def test_a_full_pipe_costs_the_caller_nothing_and_is_told_when_it_is_read(
    pipe: tuple[int, TextIO],
) -> None:
    reading, writing = pipe
    fill(writing)
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


def test_the_end_waits_a_bounded_time_for_a_full_pipe(pipe: tuple[int, TextIO]) -> None:
    _, writing = pipe
    fill(writing)
    start = time.monotonic()
    with ServiceLog(stream=writing):
        logger.error("nobody reads this")
    assert time.monotonic() - start < CLOSE_S + 5.0  # the bound, and a busy machine
    assert not [t for t in threading.enumerate() if t.name == "log" and stays(t)]


def stays(thread: threading.Thread) -> bool:
    thread.join(10.0)
    return thread.is_alive()


def test_a_pipe_whose_reader_is_gone_loses_records_and_nothing_else() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as file, ServiceLog(stream=file) as log:
        logger.error("nobody can read this")
        eventually(lambda: log.lost == 1)


def test_a_closed_stream_loses_records_and_nothing_else(path: Path) -> None:
    file = path.open("w", encoding="utf-8")
    with ServiceLog(stream=file) as log:
        # Its number is not used by others here: this test's process opens nothing meanwhile.
        file.close()
        logger.error("nowhere")
        eventually(lambda: log.lost == 1)


def test_a_full_device_loses_records_and_nothing_else() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as file, ServiceLog(stream=file) as log:
        logger.error("no room")
        eventually(lambda: log.lost == 1)


PROGRAM = """
import logging, resource, sys, time
from pathlib import Path
from modeld.service_log import ServiceLog
logger = logging.getLogger("test")
path, limit = Path(sys.argv[1]), int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
with ServiceLog() as log:
    for number in range(20):
        logger.error("record %d %s", number, "x" * 20) if number % 2 else logger.error("%s", number)
    while not log.lost:
        time.sleep(0.01)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    while "log records lost" not in path.read_text():
        time.sleep(0.01)
    logger.error("has room again")
"""


def test_a_disk_that_has_room_again_is_written_in_whole_lines(path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(path), "200"], stderr=file, check=False, timeout=60
        )
    assert done.returncode == 0
    lines = path.read_text(encoding="utf-8").splitlines()
    cut = [line for line in lines if not re.match(rf"{TIME} [EW] [\w.]+: .", line)]
    assert len(cut) <= 1, "only the line that was cut off"
    assert sum("log records lost" in line for line in lines) == 1
    assert lines[-1].endswith("has room again")


def test_a_process_ends_though_its_stderr_is_stuck() -> None:
    program = (
        "import logging; from modeld.service_log import ServiceLog\n"
        "with ServiceLog():\n"
        "    for n in range(5000): logging.getLogger('x').error(f'{n}' + 'x' * 100)\n"
    )
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], stderr=writing, check=False, timeout=60
        )
    finally:
        os.close(writing)
        os.close(reading)
    assert done.returncode == 0


def test_records_from_a_signal_and_from_threads_do_not_block_each_other(
    stream: TextIO, path: Path
) -> None:
    def work(number: int) -> None:
        for step in range(50):
            logger.debug("thread %d step %d", number, step)

    with ServiceLog(stream=stream, level="debug") as log:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert log.lost == 0
    assert len(path.read_text(encoding="utf-8").splitlines()) == 400


def test_a_directory_that_is_gone_does_not_matter_to_a_file_that_is_open() -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = (Path(directory) / "log").open("w+", encoding="utf-8")
    with file, ServiceLog(stream=file) as log:
        logger.error("still written")
    assert log.lost == 0
