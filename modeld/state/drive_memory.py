"""Saves the state of the current drive in three small files, across restarts of the process.

A process that is restarted while driving must continue like its predecessor: with the fallback
model if that was in use, and with the same model of the store (ADRs 0086 and 0091).
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtime.files.user_file import read_given

logger = logging.getLogger(__name__)

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_LIMIT_BYTES: Final = 8192
_MAX_TEXT: Final = 4000


@dataclass(frozen=True, slots=True)
class Note:
    """A file with one text, which is valid until it is cleared or the machine is rebooted."""

    path: Path | None  # None: nothing is saved

    def read(self) -> str:
        """Return the text, "" if there is none. An unreadable note counts as missing."""
        if self.path is None:
            return ""
        try:
            found = json.loads(read_given(self.path, _LIMIT_BYTES))
            return str(found["text"]) if found["boot_id"] == _boot_id() else ""
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            logger.warning("%s: not used: %s", self.path, error)
            return ""

    def write(self, text: str) -> None:
        """Save a text. A failed write is logged only; the next process starts without the text."""
        if self.path is None:
            return
        beside = self.path.with_suffix(".tmp")
        content = json.dumps({"boot_id": _boot_id(), "text": text[:_MAX_TEXT]})
        try:
            beside.write_text(content, encoding="ascii")
            beside.replace(self.path)
        except OSError as error:
            logger.error("cannot save state to %s: %s", self.path, error.strerror)  # noqa: TRY400 -- a full disk needs no traceback

    def clear(self) -> None:
        """Remove the text."""
        if self.path is None:
            return
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            logger.error("%s: cannot be removed: %s", self.path, error.strerror)  # noqa: TRY400 -- as above


class DriveMemory:
    """The notes of one daemon.

    Attributes:
        fallback: Why the drive uses the fallback model.
        model: Path of the artifact with which the drive began.
    """

    def __init__(self, directory: Path | None) -> None:
        """Keep the notes in `directory`, the configuration's `state_dir`; None saves nothing."""

        def note(name: str) -> Note:
            return Note(None if directory is None else directory / f"{name}.json")

        self.fallback, self.model, self._loading = note("fallback"), note("model"), note("loading")

    @contextmanager
    def loading(self) -> Iterator[str]:
        """Guard the loading of models; yield the artifact that hung the last start, or "".

        A model can hang the device before the loop is supervised. The note written by `load`
        survives the process, so the next one avoids that model.
        """
        try:
            yield self._loading.read()
        finally:
            self._loading.clear()

    def load(self, path: Path) -> None:
        """Save that this artifact is being loaded now."""
        self._loading.write(str(path))

    def end_drive(self) -> None:
        """Clear the notes of the drive, because the car is parked."""
        self.fallback.clear()
        self.model.clear()


def state_directory(configured: Path | None) -> Path | None:
    """Return the configured directory, else the one created by the service manager."""
    if configured is not None:
        return configured
    made = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return Path(made) if made else None


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
