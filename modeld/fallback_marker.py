"""Remembers over restarts that a drive goes on with the fallback model: small files."""

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_LIMIT_BYTES: Final = 4096
_LOADING: Final = "loading"


@dataclass(frozen=True, slots=True)
class FallbackMarker:
    """The files of one daemon: `fallback.json`, and `loading` while a model is being loaded.

    Attributes:
        directory: As `state_dir` of the configuration; None remembers nothing.
    """

    directory: Path | None

    def read(self) -> str:
        """Return why the drive goes on with the fallback model, "" if it does not.

        What cannot be read counts as not there: the model itself then decides anew.
        """
        if self.directory is None:
            return ""
        try:
            with self._path.open("rb") as file:
                found = json.loads(file.read(_LIMIT_BYTES))
            if found["boot_id"] != _boot_id():
                return ""
            return str(found["reason"])
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s: not used: %s", self._path, error)
            return ""

    @contextmanager
    def loading(self) -> Iterator[str]:
        """Around the loading of models; gives why the fallback model should be taken, as `read`.

        A model may hang the device before anything watches it. Whoever ends the process then
        leaves a mark, by which the next one begins with the fallback model.
        """
        reason = self.read()
        if not reason and self._is_marked():
            reason = "the start before did not come to the end of loading the model"
        self._mark()
        try:
            yield reason
        finally:
            self._unmark()

    def _mark(self) -> None:
        if self.directory is not None:
            with contextlib.suppress(OSError):
                (self.directory / _LOADING).write_text(_boot_id(), encoding="ascii")

    def _is_marked(self) -> bool:
        if self.directory is None:
            return False
        try:
            return (self.directory / _LOADING).read_text(encoding="latin-1") == _boot_id()
        except OSError:
            return False

    def _unmark(self) -> None:
        if self.directory is not None:
            with contextlib.suppress(OSError):
                (self.directory / _LOADING).unlink(missing_ok=True)

    def write(self, reason: str) -> None:
        """Remember; a disk that refuses is logged, and the next process decides anew."""
        if self.directory is None:
            return
        beside = self._path.with_suffix(".tmp")
        try:
            beside.write_text(
                json.dumps({"boot_id": _boot_id(), "reason": reason[:1000]}), encoding="utf-8"
            )
            beside.replace(self._path)
        except OSError as error:
            logger.error("%s: the fallback model is not remembered: %s", self._path, error.strerror)  # noqa: TRY400 -- a full disk needs no traceback

    def clear(self) -> None:
        """Forget, at the end of the drive."""
        if self.directory is None:
            return
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            logger.error("%s: cannot be removed: %s", self._path, error.strerror)  # noqa: TRY400 -- as above

    @property
    def _path(self) -> Path:
        assert self.directory is not None
        return self.directory / "fallback.json"


def state_directory(configured: Path | None) -> Path | None:
    """Return the directory that is configured, else the one that the service manager made."""
    if configured is not None:
        return configured
    made = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return Path(made) if made else None


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
