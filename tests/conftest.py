"""Settings of random tests and of the caches, for all packages; which tests run, and what alone.

Caches: of the session (`session_cache`); one that wrote into the user's has failed.
What a session leaves, killed or not, is removed by its keeper (`support/keeper.py`).
Cache of schedules: off, so that what is tested is compiled; its own tests switch it on.
Random: the same examples on every run (profile "ci"); HYPOTHESIS_PROFILE=explore draws new ones.
"""

import gc
import hashlib
import logging
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.session_cache import SESSION

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=_SLOW,
)
settings.register_profile("explore", deadline=None, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep what is collected out of the garbage collector, which would walk it again and again.

    The ten thousand tests with their modules live as long as the process.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    every, seed = config.getoption("--sample"), config.getoption("--sample-seed")
    left_out = [item for item in items if item.get_closest_marker("slow") and every > 1]
    left_out = [item for item in left_out if _number(f"{seed} {item.nodeid}") % every]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files without a test that runs alone, where only those are asked for."""
    expression = config.option.markexpr
    if not re.search(r"(?<!not )\balone\b", expression) or not collection_path.match("test_*.py"):
        return None
    return None if "mark.alone" in collection_path.read_text(encoding="utf-8") else True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden instead of comparing"
    )
    parser.addoption(
        "--sample", type=int, default=1, metavar="N", help="run about one of N slow tests"
    )
    parser.addoption("--sample-seed", default="1", help="which ones, a text (default: 1)")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if SESSION.strays() and session.exitstatus in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for name in SESSION.strays():
        terminalreporter.write_line(f"written into the user's cache: {name}", red=True)
    # None where the plugin is switched off, and the order is that of the files.
    seed = config.getoption("randomly_seed", None)
    if seed is not None and set(terminalreporter.stats) & {"failed", "error"}:
        terminalreporter.write_line(f"the same order again: --randomly-seed={seed}")


def pytest_unconfigure() -> None:
    SESSION.remove()


_ROOT_LEVEL = logging.root.level


@pytest.fixture(autouse=True)
def process_as_it_was() -> Iterator[None]:
    """Restore what commands and `DEBUG` change in the process: loggers, the thread's scheduling.

    Fixtures of a whole module call commands, too, so the level is also set before a test.
    """
    compiler = logging.getLogger("scheduler")
    kept = [(logger, logger.handlers[:]) for logger in (logging.root, compiler)]
    logging.root.setLevel(_ROOT_LEVEL)
    yield
    for logger, handlers in kept:
        logger.handlers[:] = handlers
    compiler.setLevel(logging.NOTSET)
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@pytest.fixture(scope="session", autouse=True)
def no_schedule_cache() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("SCHEDULE_CACHE", "0")
    yield
    patch.undo()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Put temporary files into the session's directory, and take back SIGINT.

    Shells let background jobs ignore it, and with them our children.
    """
    if SESSION.owned and config.option.basetemp is None:
        config.option.basetemp = SESSION.temporary
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
