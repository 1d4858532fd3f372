"""Every pass is verified.

Loops are the heuristic's: golden files must not change with a table of measured ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scheduler.support import values
from tests.scheduler.support.verified import verified_passes


@pytest.fixture(scope="session", autouse=True)
def no_tuned_table() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("TUNED", "0")
    yield
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def verify_each_pass() -> Iterator[None]:
    with verified_passes():
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    values.start()


def pytest_runtest_teardown() -> None:
    values.stop()
