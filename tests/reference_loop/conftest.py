"""Examples of the revisions, pictures of the clip, and the drive that both sides are played."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtime import load_program
from runtime.run.program import Program
from tests.reference_loop.drive import Drive, make_drive, pictures_of_the_clip
from tests.reference_loop.warps import Picture
from tests.scheduler.support.revisions import models_of, revision_artifact


@dataclass(frozen=True, slots=True)
class Example:
    """A compiled example of a revision, and its ONNX files by role."""

    program: Program
    models: dict[str, Path]


@pytest.fixture(scope="package")
def pictures() -> list[Picture]:
    return pictures_of_the_clip()


@pytest.fixture(scope="package")
def drive(pictures: list[Picture]) -> Drive:
    return make_drive(pictures, len(pictures))


@pytest.fixture(scope="package")
def views() -> dict[Any, Any]:
    """Pictures that the reference has warped; revisions with one image mode share them."""
    return {}


@pytest.fixture
def example() -> Iterator[Callable[[str], Example]]:
    programs = []

    def make(name: str) -> Example:
        programs.append(load_program(revision_artifact(name)))
        return Example(programs[-1], models_of(name))

    yield make
    for program in programs:
        program.close()
