"""References of another model: played just now, or kept by somebody who accepted that one.

A retrained model has other numbers everywhere. `modeld regress --against` judges what it does to
the drives instead, and needs no reference of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runtime.format.artifact import Artifact
from tools.playback.model import read_driving_artifact
from tools.regress.errors import RegressionReferenceError
from tools.regress.job import JobResult
from tools.regress.judge.reference import Reference, ReferenceKey, ReferenceStore, make_reference


@dataclass(frozen=True, slots=True)
class Against:
    """The other model."""

    path: Path  # of its artifact, or of a directory of its references
    artifact: Artifact | None = None  # it, checked; None: a directory


def read_against(path: Path) -> Against:
    """Return what a user named.

    Raises:
        ToolError, RuntimeFault: it is no driving artifact, and no directory.
    """
    return Against(path) if path.is_dir() else Against(path, read_driving_artifact(path))


def against_directory(path: Path) -> Path:
    """Return the directory of references, or where the artifact lies."""
    return path if path.is_dir() else path.parent


class PlayedReference:
    """The reference of one drive that the other model played just now.

    `result`: what came of it. `name`: of the other model, for messages. `provenance`: of this run.
    """

    def __init__(self, result: JobResult, name: str, provenance: Mapping[str, str]) -> None:
        self._result, self._name, self._provenance = result, name, provenance

    def find(self, key: ReferenceKey, drive_name: str) -> Reference:
        """Return the reference.

        Raises:
            RegressionReferenceError: the other model could not play the drive, or another one.
        """
        if self._result.error:
            raise RegressionReferenceError(f"by {self._name}: {self._result.error}")
        reference = make_reference(self._result, self._provenance)
        if reference.key.drive != key.drive:
            raise RegressionReferenceError(
                f"{drive_name}: expected the same drive for both models, found that it was changed "
                "while they played it; run again"
            )
        return reference


class KeptReferences:
    """References of one other model in a directory."""

    def __init__(self, store: ReferenceStore) -> None:
        self._store = store

    def find(self, key: ReferenceKey, drive_name: str) -> Reference:
        """Return the only reference of a drive that is of another model, on the same devices.

        Raises:
            ToolError: there is none, or there are several.
        """
        found = [
            one
            for one in self._store.of_drive(key.drive)
            if one.key.model != key.model and one.key.device_class == key.device_class
        ]
        if len(found) == 1:
            return found[0]
        place = f"{drive_name}: expected one reference of another model in {self._store.directory}"
        if found:
            names = ", ".join(one.file_name for one in found)
            raise RegressionReferenceError(
                f"{place}, found {len(found)} ({names}); remove those that nobody uses, or name "
                "the other model's artifact: --against OLD.pkl"
            )
        raise RegressionReferenceError(
            f"{place} for this drive and {key.device_class}, found none; name the other model's "
            "artifact: --against OLD.pkl"
        )
