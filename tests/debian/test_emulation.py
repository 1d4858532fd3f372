"""What tests are left out for: promises that a machine keeps, and names of tests that are there."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.debian.emulation import PROMISES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("what", PROMISES)
def test_a_processor_that_is_there_keeps_each_promise(what: str) -> None:
    program, _ = PROMISES[what]
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "kept\n"


def test_what_is_left_out_is_there() -> None:
    for _, tests in PROMISES.values():
        for test in tests:
            file, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8")
