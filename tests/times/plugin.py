"""pytest plugin: writes down how long each test took, and what its process did meanwhile.

`pytest -p tests.times.plugin --times DIRECTORY`. Each process appends to files of its own there:
`tests-<pid>.jsonl` has a line for each phase of a test, `causes-<pid>.json` the seconds by file and
cause. Causes are sampled: every few milliseconds the stack of the main thread is read, and the time
since the sample before counts for the innermost frame that the table knows.
"""

import json
import linecache
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

PERIOD_S = 0.01
OTHER = "other Python"
# Parts of `file:function` of a frame, and what its time is spent on; the innermost frame decides.
CAUSES: tuple[tuple[str, str], ...] = (
    ("<frozen importlib", "importing"),
    ("/_pytest/assertion/", "importing"),
    ("/subprocess.py", "waiting for processes"),
    ("/multiprocessing/", "waiting for processes"),
    ("/selectors.py", "waiting for processes"),
    ("/onnxruntime/", "onnxruntime"),
    ("/pyopencl/__init__.py:build", "compiling OpenCL programs"),
    ("/pyopencl/__init__.py:_build", "compiling OpenCL programs"),
    ("/pyopencl/", "OpenCL calls"),
    ("/runtime/", "running programs"),
    ("/tools/example_models/", "making example models"),
    ("/tools/simulator/render/", "rendering drives"),
    ("/tools/simulator/world/", "rendering drives"),
    ("/scheduler/ir/interp", "interpreting graphs"),
    ("/scheduler/ir/verify", "verifying graphs"),
    ("/scheduler/", "scheduling"),
    ("/hypothesis/", "drawing examples"),
    ("/tests/", "the tests themselves"),
    ("/cereal/", "bus, daemon and tools"),
    ("/modeld/", "bus, daemon and tools"),
    ("/tools/", "bus, daemon and tools"),
    ("/_pytest/", "pytest"),
)


class Sampler(threading.Thread):
    """Counts the seconds of the main thread, by the file that is tested and by cause."""

    def __init__(self) -> None:
        super().__init__(name="times", daemon=True)
        self.file = "(collection)"
        self.seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._main = threading.main_thread().ident
        self._end = threading.Event()

    def run(self) -> None:
        before = time.perf_counter()
        while not self._end.wait(PERIOD_S):
            frame = sys._current_frames().get(self._main or 0)
            now = time.perf_counter()
            self.seconds[self.file, _cause(frame)] += now - before
            before = now

    def end(self) -> None:
        self._end.set()
        self.join()


def _cause(frame: FrameType | None) -> str:
    """Return what the innermost known frame stands for."""
    # A frame has no line while it is set up.
    if frame is not None and frame.f_lineno is not None:
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if "sleep(" in line or ".wait(" in line or ".poll(" in line:
            return "waiting by the clock"
    while frame is not None:
        place = f"{frame.f_code.co_filename}:{frame.f_code.co_name}"
        for part, cause in CAUSES:
            if part in place:
                return cause
        frame = frame.f_back
    return OTHER


class Times:
    """The plugin of one process; the one that only hands tests to workers writes nothing."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._causes = directory / f"causes-{os.getpid()}.json"
        self._tests = directory / f"tests-{os.getpid()}.jsonl"
        self._sampler = Sampler()
        self._sampler.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._sampler.file = item.nodeid.partition("::")[0]
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = [report.nodeid, report.when, report.outcome, round(report.duration, 4)]
        with self._tests.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def pytest_sessionfinish(self) -> None:
        self._sampler.end()
        rows = [[*key, round(value, 3)] for key, value in self._sampler.seconds.items()]
        self._causes.write_text(json.dumps(rows), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", metavar="DIRECTORY", help="write there what took how long")


def pytest_configure(config: pytest.Config) -> None:
    directory = config.getoption("--times")
    hands_out = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    if directory and not hands_out:
        config.pluginmanager.register(Times(Path(directory)), "times-of-tests")
