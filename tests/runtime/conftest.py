"""Keeps the programs that these tests build out of the user's cache."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.executor import Program, load_program
from tests.runtime import tiny


@pytest.fixture(autouse=True)
def private_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path_factory.getbasetemp() / "modeld-cache"  # one for the session: it is fast
    monkeypatch.setenv("MODELD_CACHE_DIR", str(directory))


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """The tiny artifact, as written by `write_artifact`."""
    return tiny.write(tmp_path / "tiny.pkl")


@pytest.fixture
def program(artifact: Path) -> Iterator[Program]:
    """The tiny artifact, loaded."""
    with load_program(artifact) as loaded:
        yield loaded
