"""Reads the parameters of the driving stack (openpilot or a fork) from their directory.

The directory has one file per key with its value. The stack replaces files atomically, so a reader
needs no lock. The directory can be a link whose target changes. This module never writes. Format:
openpilot, 2022-2026.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from cereal.errors import MessageError
from modeld.errors import ParameterError
from runtime.files.user_file import NotAFileError, open_given

logger = logging.getLogger(__name__)

# Largest accepted file. CarParams has about 10 kB, mostly firmware versions of the car.
LIMIT_BYTES: Final = 1 << 20
# Resolution of file time stamps. A file younger than this can change without a new stamp.
_TICK_NS: Final = 20_000_000

_T = TypeVar("_T")
_Identity = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Parameter(Generic[_T]):
    """A parameter's key and the format of its values."""

    key: str  # name of the file
    parse: Callable[[bytes], _T]  # raises ValueError or MessageError: "expected ..., found ..."


@dataclass(frozen=True, slots=True)
class _Look:
    """The result of one check of a key's file."""

    at_ns: int  # time of the check
    identity: _Identity | None = None  # identity of the file; None if it may still change unnoticed
    data: bytes | None = None  # content; None if the key is not set or cannot be read
    problem: str = ""  # why it cannot be read; "" if it can


class Params:
    """The parameters in a directory, which may be missing.

    A key's file is checked at most once per `period_ms`, measured with `clock_ns`, and is read and
    parsed only if it has changed.
    """

    def __init__(
        self,
        directory: Path,
        *,
        period_ms: int = 0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.directory = directory
        self._period_ns = period_ms * 1_000_000
        self._clock_ns = clock_ns
        self._looks: dict[str, _Look] = {}
        self._values: dict[str, tuple[bytes, Any]] = {}
        self._logged: set[tuple[str, str]] = set()

    def read(self, key: str) -> bytes | None:
        """Return the bytes of a parameter, None if it is not set.

        Raises ParameterError if it cannot be read, is not a file or exceeds `LIMIT_BYTES`.
        """
        now_ns = self._clock_ns()
        look = self._looks.get(key)
        if look is None or now_ns - look.at_ns >= self._period_ns:
            look = self._looks[key] = self._look(self.directory / key, look, now_ns)
        if look.problem:
            raise ParameterError(look.problem)
        return look.data

    def value(self, parameter: Parameter[_T]) -> _T | None:
        """Return the value of a parameter, None if it is not set.

        Raises ParameterError as `read` does, or if the value is invalid.
        """
        data = self.read(parameter.key)
        if data is None:
            return None
        known = self._values.get(parameter.key)
        if known is None or known[0] is not data:
            known = self._values[parameter.key] = (data, self._parsed(parameter, data))
        value: _T = known[1]
        return value

    def usable(self, parameter: Parameter[_T]) -> _T | None:
        """Return the value of a parameter, None if it is not set or cannot be used.

        An unreadable file and an invalid value of a key are each logged once.
        """
        kind = "file"
        try:
            self.read(parameter.key)
            kind = "value"
            return self.value(parameter)
        except ParameterError as error:
            if (parameter.key, kind) not in self._logged:
                self._logged.add((parameter.key, kind))
                logger.warning("parameter not used: %s", error)
            return None

    def _parsed(self, parameter: Parameter[_T], data: bytes) -> _T:
        try:
            return parameter.parse(data)
        except (ValueError, MessageError) as error:
            raise ParameterError(f"{self.directory / parameter.key}: {error}") from error

    @staticmethod
    def _look(path: Path, before: _Look | None, now_ns: int) -> _Look:
        try:
            if before is not None and before.identity == _identity(os.stat(path)):  # noqa: PTH116 -- a third of the time
                return _Look(now_ns, before.identity, before.data)
            data, identity = _read(path)
        except (FileNotFoundError, NotADirectoryError):
            return _Look(now_ns)
        except OSError as error:
            problem = f"expected a parameter, found {error.strerror}; check the file and its disk"
        except ParameterError as error:
            problem = str(error)
        else:
            return _Look(now_ns, identity, data)
        return _Look(now_ns, problem=f"{path}: {problem}")


def _read(path: Path) -> tuple[bytes, _Identity | None]:
    """Return the content of a file, and its identity, or None if it may still change unnoticed."""
    try:
        with open_given(path) as file:
            status, data = os.fstat(file.fileno()), file.read(LIMIT_BYTES + 1)
    except NotAFileError as error:
        problem = "expected a file, found a directory or a device; remove it"
        raise ParameterError(problem) from error
    if len(data) > LIMIT_BYTES:
        raise ParameterError(f"expected at most {LIMIT_BYTES} bytes, found more; it is damaged")
    is_settled = abs(time.time_ns() - status.st_mtime_ns) > _TICK_NS
    return data, _identity(status) if is_settled else None


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
