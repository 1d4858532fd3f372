"""The resource usage of the process, from /proc, and temperatures of the machine, from /sys."""

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

_STATUS: Final = "/proc/self/status"
_DESCRIPTORS: Final = "/proc/self/fd"
# The file is 1.5 KB; longer lists of CPUs and groups make it grow.
_STATUS_BYTES: Final = 16 << 10
_KIB: Final = 1024
# Other values are no temperatures: sensors that are off report 0 K or their largest number.
_COLDEST_C: Final = -100.0
_HOTTEST_C: Final = 250.0
# Telephones have ninety sensors, and all of them would be logged.
MOST_TEMPERATURES: Final = 16


@dataclass(frozen=True, slots=True)
class Figures:
    """The resource usage of a process; 0 is not known."""

    memory_bytes: int = 0  # resident
    memory_peak_bytes: int = 0  # the most that was resident
    threads: int = 0
    open_files: int = 0  # descriptors
    cpu_s: float = 0.0  # of all threads, in user and system mode
    major_faults: int = 0  # pages that had to be read from disk


class FigureReader:
    """Reads the figures of this process repeatedly.

    The file stays open, to report also when the process has run out of descriptors.
    """

    def __init__(self) -> None:
        self._last = Figures()
        try:
            self._status = os.open(_STATUS, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._status = -1

    def read(self) -> Figures:
        """Return the figures; of what cannot be read those of before."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._last = replace(
            self._last, cpu_s=usage.ru_utime + usage.ru_stime, major_faults=usage.ru_majflt
        )
        try:
            self._last = replace(self._last, open_files=_count_descriptors())
            # Not ru_maxrss: that is inherited from what ran in this process before.
            status = os.pread(self._status, _STATUS_BYTES, 0)
            self._last = replace(
                self._last,
                memory_bytes=_number(status, b"\nVmRSS:") * _KIB,
                memory_peak_bytes=_number(status, b"\nVmHWM:") * _KIB,
                threads=_number(status, b"\nThreads:"),
            )
        except (OSError, ValueError, IndexError):
            return self._last
        return self._last

    def close(self) -> None:
        """Close the file."""
        if self._status >= 0:
            os.close(self._status)
            self._status = -1


def _count_descriptors() -> int:
    # Linux 6.2 and later say it without a descriptor of its own, which may be the one too many.
    counted = os.stat(_DESCRIPTORS).st_size  # noqa: PTH116 -- a third of the time of Path.stat
    return counted or len(os.listdir(_DESCRIPTORS)) - 1  # noqa: PTH208 -- likewise


def _number(status: bytes, key: bytes) -> int:
    return int(status[status.index(key) + len(key) :].split(maxsplit=1)[0])


@dataclass(frozen=True, slots=True)
class Temperature:
    """The reading of a sensor, in degrees Celsius."""

    name: str
    degrees_c: float


@dataclass(frozen=True, slots=True)
class Sensor:
    """A file that holds thousandths of a degree Celsius."""

    name: str
    path: Path


def find_sensors(root: Path = Path("/sys/class")) -> tuple[Sensor, ...]:
    """Return the sensors of thermal zones and of hardware monitors; looks at a few files each."""
    found = [
        Sensor(_text(zone / "type") or zone.name, zone / "temp")
        for zone in _numbered(root / "thermal", "thermal_zone*")
        if (zone / "temp").exists()
    ]
    for monitor in _numbered(root / "hwmon", "hwmon*"):
        # The kernel shows each thermal zone once more as a monitor.
        if "thermal_zone" in str((monitor / "device").resolve()):
            continue
        name = _text(monitor / "name") or monitor.name
        for path in _numbered(monitor, "temp*_input"):
            label = _text(monitor / path.name.replace("_input", "_label"))
            found.append(Sensor(f"{name} {label or path.name.removesuffix('_input')}", path))
    return tuple(found)


def read_temperatures(sensors: Sequence[Sensor]) -> tuple[Temperature, ...]:
    """Return the readings of the sensors, at most `MOST_TEMPERATURES`: the hottest.

    A sensor on a slow bus takes its time, so call it in a thread that nobody waits for.
    """
    found = []
    for sensor in sensors:
        try:
            degrees_c = int(_text(sensor.path)) / 1000
        except ValueError:
            continue
        if _COLDEST_C <= degrees_c <= _HOTTEST_C:
            found.append(Temperature(sensor.name, degrees_c))
    hottest = sorted(found, key=lambda one: -one.degrees_c)[:MOST_TEMPERATURES]
    return tuple(one for one in found if one in hottest)


def _numbered(folder: Path, pattern: str) -> list[Path]:
    """Return what matches, hwmon2 before hwmon10."""
    return sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
