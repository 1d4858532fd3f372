"""Regressions in this process: of the hand-written program, and of the planted one."""

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tools.regress.run
from tests.support.built import built
from tests.tools import tiny_driving
from tests.tools.conftest import SIZE, Modeld, Said
from tests.tools.regress.planted import Planted, jobs_here, shared
from tests.tools.tiny_driving import write_tiny_driving
from tools.cli import main
from tools.regress.job import ModelHolder
from tools.regress.run_facts import code_digest


@dataclass(frozen=True)
class Regress:
    """Regresses a drive by the program that wrote its reference, which is of this test alone."""

    modeld: Modeld
    references: Path
    model: Path
    video: Path

    def __call__(
        self,
        code: int,
        *more: object,
        model: Path | None = None,
        drives: Sequence[Path] = (),
        timing: str = "--no-timing",
    ) -> Said:
        """Regress; return what was said by a command that ends with the code."""
        words = ["--model", model or self.model, "--reference", self.references]
        words += ["--drives", *(drives or [self.video]), *(timing.split()), *more]
        return self.modeld(code, "regress", *words)

    def update(self, reason: str, code: int = 0, **more: Any) -> Said:
        return self(code, "--update", "--reason", reason, **more)

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.references.iterdir()}


def changes(said: Said) -> list[str]:
    """Return the kind and the text of each change of the drive, of what --json says."""
    (drive,) = said.json["drives"]
    assert drive["status"] != "failed"
    return [f"{change['kind']}: {change['text']}" for change in drive["changes"]]


@pytest.fixture(scope="session", autouse=True)
def code_of_this_run() -> Iterator[None]:
    """Reads the code once: each regression takes its digest, and no test changes the code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tools.regress.run, "code_digest", cache(code_digest))
        yield


@pytest.fixture
def here() -> Iterator[None]:
    """Jobs run in this process."""
    with jobs_here():
        yield


@pytest.fixture
def regress(tmp_path: Path, tiny_model: Path, video: Path, modeld: Modeld, here: None) -> Regress:
    """Regress `video` by `tiny_model`, of which there is a reference."""
    del here

    def make(to: Path) -> None:
        words = ["regress", "--model", tiny_model, "--drives", video, "--reference", to]
        words += ["--no-timing", "--update", "--reason", "the first one"]
        assert main([*map(str, words)]) == 0

    references = tmp_path / "references"
    shutil.copytree(built("tiny-reference", make), references)
    return Regress(modeld, references, tiny_model, video)


def edited_tiny(path: Path, **changed: Any) -> Path:
    """Write the hand-written artifact with parts of `tiny_driving` replaced."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changed.items():
            patch.setattr(tiny_driving, name, value)
        return write_tiny_driving(path, SIZE)


def moved_lines(path: Path, metres: float, **changed: Any) -> Path:
    """Write an artifact of the same model whose lane lines are moved."""
    bias, mode = tiny_driving._vision_weights()
    start, _ = tiny_driving.VISION_SLICES["lane_lines"]
    bias[start + 66 : start + 132 : 2] += metres
    return edited_tiny(path, _vision_weights=lambda: (bias, mode), **changed)


def edited_manifest(path: Path, edit: Any) -> Path:
    """Write the hand-written artifact with a manifest that `edit` changed in place."""

    class Edited(tiny_driving._Builder):
        def manifest(self) -> dict[str, Any]:
            manifest = super().manifest()
            edit(manifest)
            return manifest

    return edited_tiny(path, _Builder=Edited)


@contextmanager
def full_disk() -> Iterator[None]:
    """Nothing more can be written."""

    def no_space(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        yield


@pytest.fixture(scope="session")
def holder() -> Iterator[ModelHolder]:
    """Keeps the clean planted program loaded."""
    found = ModelHolder()
    yield found
    found.close()


@pytest.fixture
def planted(tmp_path: Path, holder: ModelHolder) -> Iterator[Planted]:
    """The compiled program, its drive and its reference, with jobs that run in this process."""
    with jobs_here(holder):
        yield shared(tmp_path)
