"""Every pass is verified.

Loops are the heuristic's: golden files must not change with a table of measured ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scheduler import pipeline
from scheduler.context import CompileContext
from tests.scheduler.support import values
from tests.scheduler.support.verified import Verified


@pytest.fixture(scope="session", autouse=True)
def no_tuned_table() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("TUNED", "0")
    yield
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def verify_each_pass() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    listed = pipeline.passes

    def checked(context: CompileContext) -> tuple[tuple[str, pipeline.Pass], ...]:
        return tuple((name, Verified(name, apply)) for name, apply in listed(context))

    patch.setattr(pipeline, "passes", checked)
    yield
    patch.undo()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    values.start()


def pytest_runtest_teardown() -> None:
    values.stop()
