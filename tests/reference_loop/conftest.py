"""Artifacts of the examples, pictures of the clip, and what product and reference make of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtime import load_program
from runtime.program import Program
from scheduler.compile import compile_driving
from tests.reference_loop.drive import Drive, make_drive, pictures_of_the_clip
from tests.reference_loop.warps import Picture
from tools.make_model import write_interface


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
def example(tmp_path: Path) -> Iterator[Callable[[str], Example]]:
    """Makes and compiles the example of a revision."""
    programs = []

    def make(name: str) -> Example:
        models = {path.stem: path for path, _ in write_interface(tmp_path, name)}
        # In the reverse order: the compiler tells the roles by itself.
        compile_driving(list(models.values())[::-1], interface=name).write(tmp_path / "driving.pkl")
        programs.append(load_program(tmp_path / "driving.pkl"))
        return Example(programs[-1], models)

    yield make
    for program in programs:
        program.close()
