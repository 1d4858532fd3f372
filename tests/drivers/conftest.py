"""What all tests here share: the driver in force, and that it had nothing to report."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.opencl.device import choose_device


class Reports:
    """What oclgrind wrote since somebody looked; always nothing under other drivers."""

    def __init__(self) -> None:
        self._path = Path(os.environ.get("OCLGRIND_LOG", os.devnull))
        self._seen = 0

    def take(self) -> str:
        """Return what is new."""
        if not self._path.is_file():
            return ""
        with self._path.open("rb") as file:
            file.seek(self._seen)
            new = file.read()
        self._seen += len(new)
        return new.decode(errors="replace").strip()


REPORTS = Reports()


def pytest_report_header() -> str:
    info = choose_device(None).info
    return f"driver: {info.platform}, {info.name}, {info.driver}"


@pytest.fixture(scope="session")
def driver() -> str:
    """Return the name in run.py; "" where the tests run under whatever is here."""
    return os.environ.get("TESTED_DRIVER", "")


@pytest.fixture
def reports() -> Reports:
    return REPORTS


@pytest.fixture(autouse=True)
def nothing_is_reported() -> Iterator[None]:
    """Races, bounds, values that nobody wrote: 0 reports, unless a test expects and takes them."""
    REPORTS.take()
    yield
    found = REPORTS.take()
    if found:
        pytest.fail(f"the driver reports\n{found[:2000]}", pytrace=False)
