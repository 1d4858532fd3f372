"""Reads the parameters of the stack: a directory with one file for each key, holding its value.

Writers rename whole files into place, so a reader needs no lock, and the directory is a link that
may come to lead elsewhere. Nothing is ever written. Format: openpilot, 2022-2026.
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

# CarParams has some 10 kB, most of it versions of the car's firmware.
LIMIT_BYTES: Final = 1 << 20
# A file that is as young as a tick of its time stamps may change once more without showing it.
_TICK_NS: Final = 20_000_000

_T = TypeVar("_T")
_Identity = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Parameter(Generic[_T]):
    """A key, and the format of its values."""

    key: str  # name of the file
    parse: Callable[[bytes], _T]  # raises ValueError or MessageError: "expected ..., found ..."


@dataclass(frozen=True, slots=True)
class _Look:
    """The result of one look at a key."""

    at_ns: int
    identity: _Identity | None = None  # of the file; None: none, or it may not stay as it is
    data: bytes | None = None  # its content; None: it is not set, or cannot be read
    problem: str = ""  # why it cannot be read; "" if it can


class Params:
    """The parameters in a directory; a value is read again only when its file is another one.

    The stack's rule gives the directory, which may be missing. `clock_ns` paces looks at a key.
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
        self._said: set[tuple[str, str]] = set()

    def read(self, key: str) -> bytes | None:
        """Return the bytes of a parameter, None if it is not set.

        Raises ParameterError if it cannot be read, or is no file of at most `LIMIT_BYTES`.
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

        Raises ParameterError as `read`, or if it may not have this value.
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

        Its defect is logged: a file and a value each once, however often they change.
        """
        kind = "file"
        try:
            self.read(parameter.key)
            kind = "value"
            return self.value(parameter)
        except ParameterError as error:
            if (parameter.key, kind) not in self._said:
                self._said.add((parameter.key, kind))
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
    """Return the content of a file, and the identity that shows a change of it."""
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
