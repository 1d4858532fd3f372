"""Reads the parameters of the stack: a directory with one file for each key, holding its value.

Writers rename whole files into place, so a reader needs no lock. Format: openpilot, 2022-2026.
"""

import logging
import math
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cereal.errors import MessageError
from cereal.schema import read_car_params, reading
from modeld.errors import ParameterError
from modeld.inputs import CarParameters, read_car_parameters

logger = logging.getLogger(__name__)

# CarParams has some 10 kB, most of it versions of the car's firmware.
LIMIT_BYTES: Final = 1 << 20
# How often the user's delay is looked up: 3 s at 20 Hz.
DELAY_PERIOD_UPDATES: Final = 60


def read_param(directory: Path, key: str) -> bytes | None:
    """Return the value of a parameter, None if it is not set.

    Raises:
        ParameterError: it cannot be read, or is no file of at most `LIMIT_BYTES`.
    """
    path = directory / key
    try:
        # Whatever lies there must not stop the wait: a pipe without a writer would.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ParameterError(
            f"{path}: expected a parameter, found {error.strerror}; check the file"
        ) from error
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        data = os.read(descriptor, LIMIT_BYTES + 1) if is_file else b""
    except OSError as error:
        raise ParameterError(
            f"{path}: expected a parameter, found {error.strerror}; check the file's disk"
        ) from error
    finally:
        os.close(descriptor)
    if not is_file:
        raise ParameterError(f"{path}: expected a file, found something else; remove it")
    if len(data) > LIMIT_BYTES:
        raise ParameterError(
            f"{path}: expected at most {LIMIT_BYTES} bytes, found more; the file is damaged"
        )
    return data


def car_of_params(directory: Path) -> CarParameters | None:
    """Return the car that the parameter CarParams describes, None while it is not set.

    Raises:
        ParameterError: it cannot be read, or holds no car.
    """
    data = read_param(directory, "CarParams")
    if data is None:
        return None
    try:
        with reading("CarParams"):
            car = read_car_parameters(read_car_params(data))
    except MessageError as error:
        raise ParameterError(f"{directory / 'CarParams'}: {error}") from error
    # Zeros and other structures read as a car without a name.
    if not car.name:
        raise ParameterError(
            f"{directory / 'CarParams'}: expected the fingerprint of a car, found none; the "
            "file is damaged"
        )
    return car


@dataclass(slots=True)
class UserDelay:
    """The lateral delay of a stack whose users may set one: now and then read, kept in between.

    Attributes:
        directory: The parameters.
        delay_s: In force, s.
    """

    directory: Path
    delay_s: float = 0.0
    # Each kind of defect is said once, however often the value changes.
    _said: set[str] = field(default_factory=set)

    def update(self, measured_s: float, update: int) -> float:
        """Return the delay to use, s.

        Args:
            measured_s: What the stack measures: in force unless the user has set another.
            update: Number of the update of the bus, from 0; each `DELAY_PERIOD_UPDATES`-th reads.
        """
        if update % DELAY_PERIOD_UPDATES == 0:
            chosen = self._chosen_s()
            self.delay_s = measured_s if chosen is None else chosen
        return self.delay_s

    def _chosen_s(self) -> float | None:
        try:
            if read_param(self.directory, "LagdToggle") != b"1":
                return None
            data = read_param(self.directory, "LagdValueCache")
            if data is None:
                return None
            value = _delay_s(data)
        except ParameterError as error:
            self._say("file", str(error))
            return None
        if value is None:
            self._say(
                "value",
                f"{self.directory / 'LagdValueCache'}: expected seconds from 0 to 5, found "
                f"{data[:40]!r}; set the delay again",
            )
        return value

    def _say(self, kind: str, reason: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            logger.warning("lateral delay of the user not used: %s", reason)


def _delay_s(data: bytes) -> float | None:
    try:
        value = float(data.decode("ascii"))
    except ValueError:
        return None
    return value if math.isfinite(value) and 0.0 <= value <= 5.0 else None
