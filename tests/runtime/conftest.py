"""The tiny artifact, as a file and loaded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.run.executor import Program, load_program
from tests.runtime import tiny


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    return tiny.write(tmp_path / "tiny.pkl")


@pytest.fixture
def program(artifact: Path) -> Iterator[Program]:
    with load_program(artifact) as loaded:
        yield loaded
