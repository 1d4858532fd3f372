"""Every pass is verified.

Loops are the heuristic's: golden files must not change with a table of measured ones.
Quick tests build without the optimizer of the driver, which would take two thirds of their time.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from pyopencl import Program

from runtime.format.manifest import ProgramSpec, TargetSpec
from runtime.opencl.program_cache import ProgramCache
from tests.scheduler.support import values
from tests.scheduler.support.together import UNOPTIMIZED
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


# An optimizer may spoil rounding and the order of memory accesses, so these build as users do; the
# last one shares its programs with tests of other folders.
OPTIMIZED = {
    *("test_strict.py", "test_numerics_edges.py", "test_prelude.py", "test_quotient.py"),
    *("test_megakernel.py", "test_vectors.py", "test_arbitration.py", "test_halves.py"),
    "test_program.py",
}
BUILD, PATCH = ProgramCache.build, pytest.MonkeyPatch()


def build_unoptimized(
    cache: ProgramCache, spec: ProgramSpec, target: TargetSpec | None = None
) -> Program:
    if UNOPTIMIZED not in spec.options:
        spec = replace(spec, options=f"{spec.options} {UNOPTIMIZED}".strip())
    return BUILD(cache, spec, target)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    values.start()
    if not item.get_closest_marker("slow") and item.path.name not in OPTIMIZED:
        PATCH.setattr(ProgramCache, "build", build_unoptimized)


def pytest_runtest_teardown() -> None:
    values.stop()
    PATCH.undo()
